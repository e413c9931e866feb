"""Answers in memory, which end with the server."""

import asyncio
import time
from collections.abc import Callable, Sequence

from enginebay_responses.store.kept_responses import Content, KeptResponses, unpacked
from enginebay_responses.store.retention import Changes, Limits, Record


class MemoryStore(KeptResponses):
    """A store whose answers end with the server."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(limits, clock=clock)
        self._bodies: dict[str, bytes] = {}

    async def close(self) -> None:
        pass

    def _write(self, added: tuple[Record, bytes] | None, changes: Changes) -> None:
        if added:
            record, body = added
            self._bodies[record.id] = body
        for id in changes.gone:
            del self._bodies[id]

    async def _written(self) -> None:
        pass

    async def _read(self, ids: Sequence[str]) -> list[Content]:
        return await asyncio.to_thread(unpacked, [self._bodies[id] for id in ids])
