"""Watches servers: which can answer, which cannot and why, and which are back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any

from enginebay import BackendUnavailableError, QueueFullError, ServingError
from enginebay_remote.facts import Facts, Probe
from enginebay_remote.failures import NONSENSE, NotFoundError, SilentError
from enginebay_remote.servers import LENGTHS, find_card
from enginebay_remote.upstream import LONGEST_DELAY, Upstream

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks at a server that is well."""

LOOK = 10.0
"""Seconds after which a server that says nothing to a look is given up."""

_MARKS = ("owned_by", "loaded_at", *LENGTHS, "architecture", "meta")
"""What changes in the list of models when a server has loaded its model anew, or another one."""

Sleep = Callable[[float], Awaitable[None]]

_WAITS_FOR_LOADING = (0.5, 1.0, 2.0, 4.0, 8.0, *[LONGEST_DELAY] * 10)
"""Seconds between the looks at start, all together about two minutes: machines that are switched on
together need some time until one has its model.
"""

_OF_KINDS = ("vllm", "sglang", "llama-server")
"""Kinds whose `/health` is about their one model; an Enginebay's list of models tells of each."""


class Health:
    """Looks at each server again and again: at those that are well every few seconds, at others in
    growing intervals.

    A server joins when it has been found to have the model that the first one has: by its name, its
    context, what the `probe` of the API in use finds out. `changed` is called whenever a server has
    come or gone.
    """

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        probe: Probe,
        changed: Callable[[Upstream], None],
        *,
        model: str | None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`model`: what all call it; None: what the first one lists first."""
        self._watched = [each for each in upstreams if not each.drains]
        self._probe = probe
        self._changed = changed
        self._model = model
        self._sleep = sleep
        self._reference: tuple[str, Facts] | None = None
        self._marks: dict[Upstream, list[Any]] = {}
        self._refusals: dict[Upstream, str] = {}
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Look at all servers, again while none can answer but one is loading; then go on in the
        background.
        """
        if self._model is None:
            self._model = await self._first_name()
        for delay in (*_WAITS_FOR_LOADING, None):
            found = await asyncio.gather(*map(self._found, self._watched))
            for upstream, facts in zip(self._watched, found, strict=True):
                self._note(upstream, facts)
            usable = any(each.usable for each in self._watched)
            if delay is None or usable or not any(each.loading for each in self._watched):
                break
            await self._sleep(delay)
        for upstream in self._watched:
            self._watch(upstream)

    async def close(self) -> None:
        """Look no more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def doubt(self, upstream: Upstream, reason: str, *, gone: bool = False) -> None:
        """A request failed there; `gone`: there was no connection."""
        if upstream.trouble is not None or (upstream.doubt and not gone):
            return
        upstream.failures += 1
        if gone:
            self._in_trouble(upstream, reason)
        else:
            upstream.doubt = reason
            logger.warning("%s is avoided: %s", upstream.url, reason)
        self._watch(upstream)

    def _watch(self, upstream: Upstream) -> None:
        if before := self._tasks.get(upstream):
            before.cancel()
        # In a context of its own, lest its log lines be those of the request that failed.
        looking = asyncio.create_task(self._look_on(upstream), context=Context())
        self._tasks[upstream] = looking

    async def _look_on(self, upstream: Upstream) -> None:
        while True:
            well = upstream.usable and not upstream.doubt
            await self._sleep(INTERVAL if well else upstream.delay)
            self._note(upstream, await self._found(upstream))

    async def _first_name(self) -> str | None:
        """The name of the first server's first model."""
        cards = await asyncio.gather(
            *(find_card(each.http, None) for each in self._watched), return_exceptions=True
        )
        return next((str(card["id"]) for card in cards if isinstance(card, Mapping)), None)

    async def _found(self, upstream: Upstream) -> Facts | str:
        """What a look at it finds: the facts of its model, or why it cannot answer."""
        heard, upstream.loading = upstream.heard, False
        try:
            return await self._facts(upstream)
        except SilentError as error:
            if upstream.heard == heard:
                upstream.give_up()
            return error.message
        except QueueFullError as error:  # it is there, and busy
            return upstream.facts or error.message
        except ServingError as error:
            return error.message
        except NONSENSE as error:
            return f"it says what is no answer ({error!r})"

    async def _facts(self, upstream: Upstream) -> Facts:
        card = await find_card(upstream.http, self._model)
        state = card.get("state") if card.get("owned_by") == "enginebay" else None
        upstream.asleep, upstream.loading = state == "unloaded", state == "loading"
        if state not in (None, "ready", "unloaded"):
            why = card.get("error") or (card.get("stage") if upstream.loading else None)
            raise BackendUnavailableError(f"its model is {state}" + (f" ({why})" if why else ""))
        facts, mark = upstream.facts, [card.get(name) for name in _MARKS]
        if facts and facts.server in _OF_KINDS:
            with suppress(NotFoundError):  # it is older than the route
                await upstream.http.require("/health")
        same = upstream.asleep or mark == self._marks.get(upstream)
        if same and upstream in self._refusals:
            raise BackendUnavailableError(self._refusals[upstream])
        if facts and (upstream.asleep or (same and upstream.trouble is None)):
            return facts
        found = await self._probe(upstream.http, card)
        self._marks[upstream] = mark
        return found

    def _note(self, upstream: Upstream, found: Facts | str) -> None:
        if self._reference and isinstance(found, Facts):
            url, first = self._reference
            if differences := "; ".join(first.differences(found)):
                found = f"it does not have the model that {url} had first: {differences}"
                self._refusals[upstream] = found
        if found != self._refusals.get(upstream):
            self._refusals.pop(upstream, None)
        if isinstance(found, str):
            upstream.failures += 1
            self._in_trouble(upstream, found)
            return
        self._reference = self._reference or (upstream.url, found)
        if not upstream.usable:
            upstream.failures = 0
            logger.info("%s is used: %s has %s", upstream.url, found.server, found.model)
        elif upstream.doubt:
            logger.info("%s is used again", upstream.url)
        was_usable, upstream.facts = upstream.usable, found
        upstream.trouble = upstream.doubt = None
        if not was_usable:
            self._changed(upstream)

    def _in_trouble(self, upstream: Upstream, reason: str) -> None:
        if reason != upstream.trouble:
            logger.warning("%s gets no requests: %s", upstream.url, reason)
        was_usable, upstream.trouble = upstream.usable, reason
        upstream.doubt = None
        if was_usable:
            self._changed(upstream)
