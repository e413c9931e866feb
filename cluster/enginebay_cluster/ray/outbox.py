"""What a server has not been sent yet, of all its requests to one replica."""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from enginebay import Delta, ServingError, merged_deltas
from enginebay_cluster.ray.messages import Deltas


class Outbox:
    """Filled by the requests of one server, emptied by its link. On one event loop.

    A link that replaces another one, whose messages may have been lost, ends the requests that were
    running: their answers lack something.
    """

    def __init__(self) -> None:
        self._items: defaultdict[int, list[Delta | ServingError]] = defaultdict(list)
        self._filled = asyncio.Event()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._links = 0

    @property
    def is_idle(self) -> bool:
        """Whether the server has neither a request nor a link here."""
        return not self._running and not self._links

    def put(self, number: int, item: Delta | ServingError) -> None:
        """A request has gained something."""
        self._items[number].append(item)
        self._filled.set()

    async def run(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a request, to its end; cancelling this cancels it, too."""
        task = self._running[number] = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del self._running[number]

    async def take(self, seconds: float) -> Deltas:
        """All there is, in as few deltas as possible; nothing if there was none for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._filled.wait()
        except TimeoutError:
            return []
        self._filled.clear()
        items, self._items = self._items, defaultdict(list)
        return [(number, list(merged_deltas(each))) for number, each in items.items()]

    def attach(self) -> None:
        """A link begins to empty it."""
        if self._links:
            self._items.clear()
            for task in self._running.values():
                task.cancel()
        self._links += 1

    def detach(self) -> None:
        """A link has ended."""
        self._links -= 1
