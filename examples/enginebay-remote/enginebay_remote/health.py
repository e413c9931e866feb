"""Watches servers: which can answer, which cannot and why, and which are back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any

from enginebay import BackendUnavailableError, QueueFullError, ServingError
from enginebay_remote.facts import Facts, Probe
from enginebay_remote.failures import NONSENSE, NotFoundError, SilentError
from enginebay_remote.servers import LENGTHS, Wanted, find_card
from enginebay_remote.upstream import Upstream

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks at a server that is well."""

LOOK = 10.0
"""Seconds that a server has for its list of models, or else it is given up."""

LONGEST_LOOK = 120.0
"""Seconds that it has for a whole look, which may have it generate a token, as its turn comes."""

GRACE = 1.0
"""Seconds that all servers have at start, so that others are compared with the first of the list
and not with the quickest.
"""

_MARKS = ("id", "owned_by", "loaded_at", *LENGTHS, "architecture", "meta")
"""What changes in the list of models when a server has loaded its model anew, or another one."""

Sleep = Callable[[float], Awaitable[None]]

_LOOKS_AT_LOADING = 16
"""How often a server that is loading is looked at before it is no longer waited for at start, about
two minutes: machines that are switched on together need some time until one has its model.
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
        wanted: Wanted,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._watched = [each for each in upstreams if not each.drains]
        self._probe = probe
        self._changed = changed
        self._wanted = wanted
        self._sleep = sleep
        self._reference: tuple[str, Facts] | None = None
        self._marks: dict[Upstream, list[Any]] = {}
        self._refusals: dict[Upstream, str] = {}
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}
        self._awaited = set(self._watched)
        self._settled = asyncio.Event()

    async def start(self) -> None:
        """Look at all servers, until one can answer or none is loading; then, and at the others, go
        on in the background.
        """
        if not self._watched:
            return
        for upstream in self._watched:
            upstream.failures = 0
        looks = {each: asyncio.create_task(self._found(each)) for each in self._watched}
        try:
            await asyncio.wait(looks.values(), timeout=GRACE)
        finally:
            for upstream, look in looks.items():
                self._watch(upstream, look)
        await self._settled.wait()

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
            self._log(logging.WARNING, upstream, f"is avoided: {reason}")
        self._watch(upstream)

    def _watch(self, upstream: Upstream, look: asyncio.Task[Facts | str] | None = None) -> None:
        """Look at it from now on; `look`: the first one, which is under way."""
        if before := self._tasks.get(upstream):
            before.cancel()
        # In a context of its own, lest its log lines be those of the request that failed.
        looking = asyncio.create_task(self._look_on(upstream, look), context=Context())
        self._tasks[upstream] = looking

    async def _look_on(self, upstream: Upstream, look: asyncio.Task[Facts | str] | None) -> None:
        if look:
            self._note(upstream, await look)
        while True:
            well = upstream.usable and not upstream.doubt
            await self._sleep(INTERVAL if well else upstream.delay)
            self._note(upstream, await self._found(upstream))

    async def _found(self, upstream: Upstream) -> Facts | str:
        """What a look at it finds: the facts of its model, or why it cannot answer."""
        heard, upstream.loading = upstream.heard, False
        try:
            async with asyncio.timeout(LONGEST_LOOK):
                return await self._facts(upstream)
        except TimeoutError:
            return f"a look at it had no end within {LONGEST_LOOK:g} seconds"
        except SilentError as error:
            if upstream.heard == heard:
                upstream.give_up()
            return upstream.reason_of(error)
        except QueueFullError as error:  # it is there, and busy
            return upstream.facts or error.message
        except ServingError as error:
            return upstream.reason_of(error)
        except NONSENSE:
            logger.debug("what %s says cannot be read", upstream.url, exc_info=True)
            return "what it says of its model is no answer"

    async def _facts(self, upstream: Upstream) -> Facts:
        card = await find_card(upstream.http, self._wanted)
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
            if not upstream.loading or upstream.failures >= _LOOKS_AT_LOADING:
                self._settle(upstream)
            return
        self._reference = self._reference or (upstream.url, found)
        if not upstream.usable:
            upstream.failures = 0
        use = "is used if there is no other: its model is unloaded"
        if not upstream.asleep:
            use = f"is used: {found.server} has {found.model}"
        self._log(logging.INFO, upstream, use)
        was_usable, upstream.facts = upstream.usable, found
        upstream.trouble = upstream.doubt = None
        if not was_usable:
            self._changed(upstream)
        self._settle(upstream)

    def _settle(self, upstream: Upstream) -> None:
        """It is no longer waited for at start, nor is any other if it can answer."""
        self._awaited.discard(upstream)
        if upstream.usable or not self._awaited:
            self._settled.set()

    def _in_trouble(self, upstream: Upstream, reason: str) -> None:
        self._log(logging.WARNING, upstream, f"gets no requests: {reason}")
        was_usable, upstream.trouble = upstream.usable, reason
        upstream.doubt = None
        if was_usable:
            self._changed(upstream)

    def _log(self, level: int, upstream: Upstream, line: str) -> None:
        """What is new of a server."""
        if line != upstream.logged:
            logger.log(level, "%s %s", upstream.url, line)
        upstream.logged = line
