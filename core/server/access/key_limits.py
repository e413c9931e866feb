"""Rate and concurrency limits of keys."""

import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from core.config.keys import Key
from core.contract.errors import RateLimitError

WINDOW = 60.0
"""Seconds in which `requests_per_minute` may arrive."""


class KeyUse:
    """The recent and the running requests of one key.

    A sliding window: in no 60 seconds are there more requests than the limit, and the time after
    which there is room again is known exactly. Requests that were refused do not count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._received: deque[float] = deque()
        self.running = 0

    @asynccontextmanager
    async def counted(self, key: Key) -> AsyncIterator[None]:
        """Count a request for as long as the block runs. Raises `RateLimitError`."""
        self._forget()
        limit = key.requests_per_minute
        if limit is not None and len(self._received) >= limit:
            seconds = math.ceil(self._received[-limit] + WINDOW - self._clock())
            raise RateLimitError(
                f"requests with the API key of {key.name} are limited to {limit} per minute; "
                f"try again in {seconds} s",
                retry_after=seconds,
            )
        if key.concurrent_requests is not None and self.running >= key.concurrent_requests:
            raise RateLimitError(
                f"requests with the API key of {key.name} are limited to "
                f"{key.concurrent_requests} at once; try again when one of them has ended",
                retry_after=1,
            )
        if limit is not None:
            self._received.append(self._clock())
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def headers(self, key: Key) -> dict[str, str]:
        """OpenAI's headers about the limit of requests; none without one.

        https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
        """
        limit = key.requests_per_minute
        if limit is None:
            return {}
        self._forget()
        newest = self._received[-1] if self._received else self._clock() - WINDOW
        return {
            "x-ratelimit-limit-requests": str(limit),
            "x-ratelimit-remaining-requests": str(max(0, limit - len(self._received))),
            "x-ratelimit-reset-requests": f"{newest + WINDOW - self._clock():.3f}s",
        }

    def _forget(self) -> None:
        over = self._clock() - WINDOW
        while self._received and self._received[0] <= over:
            self._received.popleft()


class KeyUses:
    """The use of every key, by its name, so that it outlives changes of the keys file."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._uses: defaultdict[str, KeyUse] = defaultdict(lambda: KeyUse(clock))

    def of(self, key: Key) -> KeyUse:
        """What this key uses."""
        return self._uses[key.name]
