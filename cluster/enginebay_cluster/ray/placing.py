"""Which replica gets a request: by the prompts that each was given, and what runs there."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from enginebay import PrefixAffinity
from enginebay_cluster.contract import ClusterError, SharedObject

logger = logging.getLogger(__name__)

BLOCK = 32
"""Tokens that are compared at once."""

_SILENT = 10.0
"""Seconds after which what a server has placed counts no more, if it says nothing."""

_SOME = 8192  # blocks, of an engine that does not say how many tokens it caches


@dataclass(slots=True)
class _Engines:
    """The engines of one model: which prompts they know, and the choices that run on each."""

    affinity: PrefixAffinity[str]
    running: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Server:
    """What a server has placed: by ticket, the model, the replica and the choices.

    `seen`: when it was heard of last.
    """

    seen: float
    placed: dict[int, tuple[str, str, int]] = field(default_factory=dict)


class Placements:
    """Places requests of one server or several. To be used on one event loop.

    `place` is followed by `end` with the same ticket. A server that is silent for ten seconds is
    gone, and what it has placed counts no more. All of it can be lost without harm but to speed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: dict[str, _Engines] = {}
        self._servers: dict[str, _Server] = {}

    async def place(
        self,
        server: str,
        ticket: int,
        model: str,
        hashes: Sequence[int],
        choices: int,
        replicas: Sequence[str],
        cached_tokens: int | None,
    ) -> str:
        """One of these replicas, which counts as busy with so many choices until `end`.

        `hashes`: of the prompt's blocks. `cached_tokens`: how many an engine keeps, if known.
        """
        self._forget_silent()
        engines = self._models.get(model)
        if engines is None:
            remember = cached_tokens // BLOCK if cached_tokens else _SOME
            engines = _Engines(PrefixAffinity(block=BLOCK, remember=remember))
            self._models[model] = engines
        loads = {replica: engines.running[replica] for replica in replicas}
        chosen = engines.affinity.rank(hashes, loads)[0]
        engines.affinity.note(hashes, chosen)
        engines.running[chosen] += choices
        self._server(server).placed[ticket] = model, chosen, choices
        return chosen

    async def end(self, server: str, ticket: int) -> None:
        """A request has ended; an unknown one is no error."""
        placed = self._server(server).placed.pop(ticket, None)
        if placed:
            self._release(placed)

    async def forget(self, model: str, replica: str) -> None:
        """A replica is gone; again is no error."""
        if engines := self._models.get(model):
            engines.affinity.forget(replica)

    async def beat(self, server: str) -> None:
        """A server is there."""
        self._server(server)

    def _server(self, name: str) -> _Server:
        server = self._servers.setdefault(name, _Server(0.0))
        server.seen = self._clock()
        return server

    def _forget_silent(self) -> None:
        late = self._clock() - _SILENT
        for name in [name for name, server in self._servers.items() if server.seen < late]:
            for placed in self._servers.pop(name).placed.values():
                self._release(placed)

    def _release(self, placed: tuple[str, str, int]) -> None:
        model, replica, choices = placed
        running = self._models[model].running
        running[replica] -= choices
        if not running[replica]:
            del running[replica]


class Placer:
    """How a server asks for places: of placements of its own, or of all servers of the cluster.

    `shared` are those of all servers, None for a server alone. Where they cannot be reached, or do
    not answer for `patience` seconds, its own are asked: they know less, which costs speed only.
    On the event loop.
    """

    def __init__(self, shared: SharedObject | None = None, patience: float = 2.0) -> None:
        self._shared = shared
        self._patience = patience
        self._own = Placements()
        self._server = uuid4().hex[:12]
        self._tickets = count()
        self._ending: set[asyncio.Task[None]] = set()
        self._beating = shared and asyncio.create_task(self._beat())

    @asynccontextmanager
    async def placed(
        self,
        model: str,
        hashes: Sequence[int],
        choices: int,
        replicas: Sequence[str],
        cached_tokens: int | None,
    ) -> AsyncIterator[str]:
        """The replica for a request, which counts as running there while the block runs."""
        ticket = next(self._tickets)
        asked = model, hashes, choices, replicas, cached_tokens
        if self._shared:
            try:
                async with asyncio.timeout(self._patience):
                    chosen = await self._shared.call("place", self._server, ticket, *asked)
            except ClusterError as error:
                logger.warning("placed by this server alone: %s", error.message)
            except TimeoutError:
                logger.warning("placed by this server alone: what servers share does not answer")
                self._in_background(self._shared.call("end", self._server, ticket))
            else:
                try:
                    yield chosen
                finally:
                    self._in_background(self._shared.call("end", self._server, ticket))
                return
        chosen = await self._own.place(self._server, ticket, *asked)
        try:
            yield chosen
        finally:
            await self._own.end(self._server, ticket)

    def forget(self, model: str, replica: str) -> None:
        """A replica is gone."""
        self._in_background(self._own.forget(model, replica))
        if self._shared:
            self._in_background(self._shared.call("forget", model, replica))

    def close(self) -> None:
        """Say no more."""
        if self._beating:
            self._beating.cancel()

    def _in_background(self, call: Coroutine[Any, Any, Any]) -> None:
        async def say() -> None:
            with suppress(ClusterError):  # which has forgotten all
                await call

        task = asyncio.create_task(say())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _beat(self) -> None:
        assert self._shared
        while True:
            with suppress(ClusterError):
                await self._shared.call("beat", self._server)
            await asyncio.sleep(_SILENT / 5)
