"""Several servers of one model: which one gets a request, and what happens when it fails there."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from enginebay import (
    BackendUnavailableError,
    GenerationRequest,
    PrefixAffinity,
    QueueFullError,
    ReportBatchSize,
    ServingError,
)
from enginebay_remote.facts import Facts, Probe
from enginebay_remote.failures import SilentError, UnreachableError, is_of_request
from enginebay_remote.health import Health, Sleep
from enginebay_remote.prompts import prompt_numbers
from enginebay_remote.servers import Wanted
from enginebay_remote.upstream import Upstream

_WEIGHT = 3
"""Tokens of a prompt that outweigh a hundredth of a running choice, as `Upstream.load` counts."""


Affinity = PrefixAffinity[int]
"""Which prompts each server was given, by `Upstream.key`."""


def new_affinity() -> Affinity:
    """One that knows nothing yet."""
    return PrefixAffinity(weight=_WEIGHT)


class Pool:
    """Sends each request to the server that has computed most of its prompt, unless that is busy.

    A request that has said nothing moves to another server when one fails, `moves` times at most;
    one that has said something fails. `report_batch_size` is told how many choices all usable
    servers compute at once, if all say.
    """

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        *,
        wanted: Wanted,
        moves: int,
        report_batch_size: ReportBatchSize,
        sleep: Sleep = asyncio.sleep,
        affinity: Affinity | None = None,
    ) -> None:
        """`affinity`: what another pool of these servers knows of their caches."""
        self._upstreams = {each.key: each for each in upstreams}
        self._wanted = wanted
        self._moves = moves
        self._report_batch_size = report_batch_size
        self._sleep = sleep
        self._affinity = new_affinity() if affinity is None else affinity
        self._health: Health | None = None
        self._closed = False

    @property
    def unavailable(self) -> str | None:
        """Why none of the servers can answer, each with its reason; None if one can."""
        if self._health is None or any(each.usable for each in self._upstreams.values()):
            return None
        return self._reasons()

    @property
    def slots(self) -> int | None:
        """How many choices the usable servers compute at once; None if one does not say."""
        told = [each.facts.slots for each in self._usable() if each.facts]
        return sum(filter(None, told)) if told and None not in told else None

    async def start(self, probe: Probe) -> Facts:
        """The facts of the model, of the first server that is up.

        `BackendUnavailableError` if there is none.
        """
        health = Health(
            list(self._upstreams.values()),
            probe,
            self._changed,
            wanted=self._wanted,
            sleep=self._sleep,
        )
        self._health = health
        await health.start()
        first = next((each.facts for each in self._usable()), None)
        if first is None:
            await health.close()
            raise BackendUnavailableError(self._reasons())
        return first

    async def post(self, path: str, body: Any) -> Any:
        """The JSON with which any of the servers answers `body`, the one with the least to do."""
        tried: dict[Upstream, ServingError] = {}
        while left := self._left(tried):
            upstream = min(left, key=lambda each: each.load)
            try:
                return await upstream.http.post(path, body)
            except ServingError as error:
                self._failed(upstream, error, tried)
        raise self._failure(tried)

    async def events(
        self,
        path: str,
        body: Any,
        request: GenerationRequest,
        *,
        says: Callable[[dict[str, Any]], bool] = bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events that answer `body`, which is made of `request`."""
        hashes = self._affinity.hashes(prompt_numbers(request), request.cache_salt or "")
        headers = {"X-Request-Id": request.request_id}
        tried: dict[Upstream, ServingError] = {}
        while left := self._left(tried):
            key = self._affinity.rank(hashes, {each.key: each.load for each in left})[0]
            upstream, began = self._upstreams[key], False
            self._affinity.note(hashes, key)
            events = upstream.http.events(path, body, headers, says=says)
            try:
                with upstream.answering(request.n):
                    async with aclosing(events):
                        while (event := await _next(upstream, events)) is not None:
                            began = True
                            yield event
                return
            except ServingError as error:
                if began:
                    self._note_failure(upstream, error)
                    raise _broken_off(upstream, error) from error
                self._failed(upstream, error, tried)
            if len(tried) > self._moves:
                break
        raise self._failure(tried)

    async def close(self) -> None:
        """Close all connections, those in use, too."""
        self._closed = True
        if self._health:
            await self._health.close()
        for upstream in self._upstreams.values():
            await upstream.http.close()

    def _usable(self) -> list[Upstream]:
        return [each for each in self._upstreams.values() if each.usable]

    def _left(self, tried: Mapping[Upstream, Any]) -> list[Upstream]:
        """The servers that may be asked next, all as likely to answer."""
        left = [each for each in self._usable() if each not in tried]
        least = min((each.reluctance for each in left), default=0)
        return [each for each in left if each.reluctance == least]

    def _failed(
        self, upstream: Upstream, error: ServingError, tried: dict[Upstream, ServingError]
    ) -> None:
        """Take note of what another server may do better; raise the error if none can."""
        if self._closed or is_of_request(error):
            raise error
        tried[upstream] = error
        self._note_failure(upstream, error)

    def _note_failure(self, upstream: Upstream, error: ServingError) -> None:
        of_server = not (is_of_request(error) or isinstance(error, QueueFullError))
        if self._health and not self._closed and of_server:
            gone = isinstance(error, UnreachableError)
            self._health.doubt(upstream, upstream.reason_of(error), gone=gone)

    def _failure(self, tried: Mapping[Upstream, ServingError]) -> ServingError:
        """What to tell of a request that no server has answered."""
        errors = list(tried.values())
        busy = [error for error in errors if isinstance(error, QueueFullError)]
        if busy:
            waits = [error.retry_after for error in busy if error.retry_after is not None]
            message = f"every server that can answer is busy: {busy[-1].message}"
            return QueueFullError(message, retry_after=min(waits, default=None))
        if len(errors) == 1:
            return errors[0]
        if not errors:
            return BackendUnavailableError(self._reasons())
        said = "; ".join(f"{each.url}: {each.reason_of(error)}" for each, error in tried.items())
        return BackendUnavailableError(f"no server could answer: {said}")

    def _reasons(self) -> str:
        reasons = "; ".join(f"{each.url}: {each.reason}" for each in self._upstreams.values())
        return f"none of its {len(self._upstreams)} servers can answer: {reasons}"

    def _changed(self, upstream: Upstream) -> None:
        """A server has come, or gone, whose cache is lost then."""
        if not upstream.usable:
            self._affinity.forget(upstream.key)
        if self._usable():
            self._report_batch_size(self.slots)


async def _next(
    upstream: Upstream, events: AsyncGenerator[dict[str, Any], None]
) -> dict[str, Any] | None:
    """The next event; None after the last one."""
    try:
        with upstream.waiting() as limit:
            async with limit:
                event = await anext(events, None)
    except TimeoutError:
        raise SilentError(
            f"{upstream.http.name}: it says nothing any more, not even to a look at it"
        ) from None
    if event is not None:
        upstream.hear()
    return event


def _broken_off(upstream: Upstream, error: ServingError) -> ServingError:
    """The error of a request that cannot move any more."""
    if is_of_request(error):
        return error
    return BackendUnavailableError(
        f"the answer of {upstream.url} broke off, and another server cannot go on with it; "
        f"send the request again ({upstream.reason_of(error)})"
    )
