"""Tracks who is using a model."""

import asyncio
from collections import Counter


class Use:
    """How many requests hold a model, how many wait for it, and when the last one released it.

    `users`: how many requests of each user hold it. Users are names of API keys, or None.
    """

    def __init__(self) -> None:
        self.count = 0
        self.users: Counter[str | None] = Counter()
        self.waiting = 0
        self.last: float | None = None
        self._nobody = asyncio.Event()
        self._nobody.set()

    def begin(self, user: str | None) -> None:
        """One more, of this user."""
        self.count += 1
        self.users[user] += 1
        self._nobody.clear()

    def end(self, user: str | None, now: float) -> None:
        """One fewer; `now` by the clock that `last` is read with."""
        self.count -= 1
        self.users -= Counter([user])
        self.last = now
        if not self.count:
            self._nobody.set()

    async def wait_for_nobody(self) -> None:
        """Return when it is unused."""
        await self._nobody.wait()
