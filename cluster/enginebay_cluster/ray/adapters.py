"""Adapters that were loaded while the server ran: on all engines, also those that come later."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from enginebay import EngineDeadError, Lora, ServingError

logger = logging.getLogger(__name__)

CallReplica = Callable[..., Awaitable[object]]
"""`call(replica, method, *args)`: raises the `ServingError` of the engine."""


class Adapters:
    """Those of one model, by name. `call` calls a method of a replica. On one event loop."""

    def __init__(self, call: CallReplica) -> None:
        self._call = call
        self._loaded: dict[str, tuple[Lora, ...]] = {}
        self._turn = asyncio.Lock()

    async def load(self, name: str, loras: Sequence[Lora], replicas: Sequence[str]) -> None:
        """Load one into these replicas; into none, if one of them refuses it."""
        async with self._turn:
            refused = await self._on_each(replicas, "load_adapter", name, tuple(loras))
            if refused:
                if name not in self._loaded:
                    await self._on_each(replicas, "unload_adapter", name)
                raise refused
            self._loaded[name] = tuple(loras)

    async def unload(self, name: str, replicas: Sequence[str]) -> None:
        """Unload one from these replicas, and do not load it into others."""
        async with self._turn:
            self._loaded.pop(name, None)
            if refused := await self._on_each(replicas, "unload_adapter", name):
                raise refused

    async def load_into(self, replica: str) -> None:
        """Load all of them into a replica that is new here, before it gets requests."""
        async with self._turn:
            for name, loras in self._loaded.items():
                await self._call(replica, "load_adapter", name, loras)

    async def _on_each(
        self, replicas: Sequence[str], method: str, *args: object
    ) -> ServingError | None:
        """The first error that one of them answers with; those that are lost do not count."""
        calls = [self._call(replica, method, *args) for replica in replicas]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, EngineDeadError):
                logger.info("%s: %s", method, answer.message)
            elif isinstance(answer, ServingError):
                return answer
            elif isinstance(answer, BaseException):
                raise answer
        return None
