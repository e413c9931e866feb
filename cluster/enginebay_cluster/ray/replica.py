"""An engine on some node: any backend of Enginebay, behind a replica of Ray Serve."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from enginebay import (
    Backend,
    GenerationRequest,
    Lora,
    MemoryUse,
    ReasoningBudget,
    ServingError,
    SystemMeter,
)
from enginebay_cluster.contract import EngineSpec
from enginebay_cluster.engine_spec import create_backend
from enginebay_cluster.ray.messages import Hello, Report, pack
from enginebay_cluster.ray.outbox import Outbox

logger = logging.getLogger(__name__)

_GRACE = 60.0
"""Seconds that an engine may be away, starting again by itself, before its replica is replaced."""

_REPORT_EVERY = 1.0
"""Seconds between two reports while something changes."""

_MEMORY_EVERY = 5.0
"""Seconds between two measurements of memory, which opens the driver of GPUs."""

_NOTHING = b""
"""Said when there is nothing to say, so that silence means that something is wrong."""


class EngineReplica:
    """Loads its model when it is made; is made again, on some node, when it is lost.

    A request is one call of `run`, which lasts as long as the request does: so Serve counts it,
    waits for it before it ends the replica, cancels it, and tells the server that the replica died.
    What is generated goes another way, by the `link` of that server, which carries the deltas of
    all its requests: in Ray a message costs half a millisecond, however much is in it.

    `version`: see `deployment`. `window`: seconds of deltas that are gathered for one message.
    `heartbeat`: the longest silence of a link, in seconds. The argument `replica` of the methods is
    for the router.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, engine: EngineSpec, version: str, window: float, heartbeat: float
    ) -> None:
        for package in ("cluster", "hf", "llamacpp", "exllamav2"):
            logging.getLogger(f"enginebay_{package}").setLevel(logging.INFO)
        self._version = version
        self._window, self._heartbeat = window, heartbeat
        self._outboxes: dict[str, Outbox] = {}
        self._adapters: dict[str, tuple[Lora, ...]] = {}
        self._away_since: float | None = None
        self._node = ray.get_runtime_context().get_node_id()
        try:
            self._backend: Backend = await asyncio.to_thread(
                create_backend, engine, partial(_log_progress, engine.name)
            )
            self._info = await self._backend.start()
        except ServingError as error:  # whose message is all that anybody needs to know
            raise RuntimeError(error.message) from None
        await self._measure_memory()
        self._report = self._current()
        self._measuring = [
            asyncio.create_task(each) for each in (self._keep_report(), self._keep_memory())
        ]

    async def run(
        self, request: GenerationRequest, server: str, number: int, replica: str
    ) -> AsyncGenerator[bytes, None]:
        """Answer a request; closing this aborts it.

        A stream that only says that it has begun: of a call without a stream Serve says at its end
        whether it was accepted, and calls again when its replica dies.
        """
        outbox = self._outboxes.setdefault(server, Outbox())
        try:
            yield _NOTHING
            await outbox.run(number, self._generate(request, server, number, outbox))
        finally:
            if outbox.is_idle:
                self._outboxes.pop(server, None)

    async def _generate(
        self, request: GenerationRequest, server: str, number: int, outbox: Outbox
    ) -> None:
        # Clients choose ids, and two servers may be given the same one.
        request = replace(request, request_id=_engine_id(request.request_id, server, number))
        try:
            async with aclosing(self._backend.generate(request)) as deltas:
                async for delta in deltas:
                    outbox.put(number, delta)
        except ServingError as error:
            outbox.put(number, error)
        except Exception as error:
            logger.exception("request %s failed", request.request_id)
            outbox.put(number, ServingError(f"{type(error).__name__}: {error}"))

    async def link(self, server: str, replica: str) -> AsyncGenerator[bytes, None]:
        """What the requests of a server gain, for as long as the server listens."""
        outbox = self._outboxes.setdefault(server, Outbox())
        outbox.attach()
        told: Report | None = None
        try:
            yield pack(Hello(self._version, self._info, self._node))
            while True:
                if told is not self._report:
                    told = self._report
                    yield pack(told)
                deltas = await outbox.take(min(self._heartbeat, _REPORT_EVERY))
                if deltas:
                    yield pack(deltas)
                    if self._window:
                        await asyncio.sleep(self._window)
                elif told is self._report:
                    yield _NOTHING
        finally:
            outbox.detach()
            if outbox.is_idle:
                self._outboxes.pop(server, None)

    async def call(self, method: str, *args: Any, replica: str | None = None, **kwargs: Any) -> Any:
        """Any other method of the backend; a `ServingError` is returned, not raised."""
        try:
            return await getattr(self._backend, method)(*args, **kwargs)
        except ServingError as error:
            return error

    async def end_reasoning(
        self, request_id: str, server: str, number: int, budget: ReasoningBudget, replica: str
    ) -> int | ServingError:
        """As of a backend, for a request of a server."""
        id = _engine_id(request_id, server, number)
        found: int | ServingError = await self.call("end_reasoning", id, budget)
        return found

    async def load_adapter(
        self, name: str, loras: Sequence[Lora], replica: str
    ) -> ServingError | None:
        """As of a backend. Each server says it; what is there already is not loaded anew."""
        if self._adapters.get(name) == tuple(loras):
            return None
        error = await self.call("load_adapter", name, loras)
        if error is None:
            self._adapters[name] = tuple(loras)
        refused: ServingError | None = error
        return refused

    async def unload_adapter(self, name: str, replica: str) -> ServingError | None:
        """As of a backend."""
        self._adapters.pop(name, None)
        refused: ServingError | None = await self.call("unload_adapter", name)
        return refused

    async def describe(self, replica: str) -> Report:
        """How it is."""
        return self._report

    async def check_health(self) -> None:
        """Called by Serve every few seconds; raising has this replica replaced."""
        reason = self._backend.unavailable
        if reason is None:
            self._away_since = None
            async with asyncio.timeout(_GRACE):
                await self.call("ping")
            return
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._away_since > _GRACE:
            raise RuntimeError(reason)

    async def _keep_report(self) -> None:
        while True:
            await asyncio.sleep(min(self._heartbeat, _REPORT_EVERY) / 2)
            report = self._current()
            if report != self._report:
                self._report = report

    async def _keep_memory(self) -> None:
        while True:
            await asyncio.sleep(_MEMORY_EVERY)
            await self._measure_memory()

    async def _measure_memory(self) -> None:
        self._memory = await asyncio.to_thread(_memory, self._backend.pid)

    def _current(self) -> Report:
        return Report(self._backend.stats, self._backend.unavailable, self._memory)

    async def __del__(self) -> None:
        if backend := getattr(self, "_backend", None):
            await backend.close()


def _engine_id(request_id: str, server: str, number: int) -> str:
    return f"{request_id}/{server}/{number}"


def _memory(pid: int | None) -> MemoryUse | None:
    """The memory of an engine's process, in whole MiB; without one, of the replica's."""
    use = SystemMeter().of_process(pid or os.getpid())
    return use and MemoryUse(use.ram >> 20 << 20, use.gpu >> 20 << 20)


def _log_progress(name: str, stage: str, fraction: float) -> None:
    logger.info("%s: %s, %.0f %%", name, stage, 100 * fraction)
