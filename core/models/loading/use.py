"""Tracks who is using a model."""

import asyncio


class Use:
    """How many requests hold a model, how many wait for it, and when the last one released it."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting = 0
        self.last: float | None = None
        self._nobody = asyncio.Event()
        self._nobody.set()

    def begin(self) -> None:
        """One more."""
        self.count += 1
        self._nobody.clear()

    def end(self, now: float) -> None:
        """One fewer; `now` by the clock that `last` is read with."""
        self.count -= 1
        self.last = now
        if not self.count:
            self._nobody.set()

    async def wait_for_nobody(self) -> None:
        """Return when it is unused."""
        await self._nobody.wait()
