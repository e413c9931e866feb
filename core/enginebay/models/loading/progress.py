"""The loading progress of a model and its watchers."""

import asyncio
from collections.abc import AsyncGenerator


class LoadProgress:
    """The `stage` and the completed `fraction` of the work, from 0 to 1.

    `report` may be called on any thread; everything else happens on the event loop.
    """

    def __init__(self) -> None:
        self.stage = ""
        self.fraction = 0.0
        self._watchers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def __str__(self) -> str:
        return f"{self.stage}, {self.fraction:.0%}"

    def report(self, stage: str, fraction: float) -> None:
        """Set the current stage and fraction."""
        self.stage, self.fraction = stage, fraction
        for changed, loop in list(self._watchers.items()):
            loop.call_soon_threadsafe(changed.set)

    async def watch(self, loading: asyncio.Task[None]) -> AsyncGenerator[tuple[str, float], None]:
        """Stage and fraction now and after every change, until `loading` has ended."""
        changed = asyncio.Event()
        loading.add_done_callback(lambda _: changed.set())
        self._watchers[changed] = asyncio.get_running_loop()
        try:
            while not loading.done():
                yield self.stage, self.fraction
                await changed.wait()
                changed.clear()
        finally:
            del self._watchers[changed]
