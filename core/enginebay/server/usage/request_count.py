"""The requests of a key: how many there were in the last minute, and how many run."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from enginebay.config.keys import Key
from enginebay.contract.errors import RateLimitError
from enginebay.server.usage.limit_use import LimitUse
from enginebay.server.usage.token_window import WINDOW


@dataclass(frozen=True, slots=True)
class RequestsSeen:
    """What a count of requests comes to: those of the last 60 seconds, those that run.

    `reset_s`: seconds after which none is of the last 60, if no other comes.
    """

    received: int = 0
    reset_s: float = 0.0
    running: int = 0

    def after(self, seconds: float) -> "RequestsSeen":
        """The same when that time has gone by, as far as it can be known."""
        left = max(0.0, self.reset_s - seconds)
        return RequestsSeen(self.received if left else 0, left, self.running)

    def limits(self, key: Key) -> dict[str, LimitUse]:
        """The limits of requests that this key has, by their names in the keys file."""
        limits = {}
        if key.requests_per_minute is not None:
            limits["requests_per_minute"] = LimitUse(
                key.requests_per_minute, self.received, self.reset_s
            )
        if key.concurrent_requests is not None:
            limits["concurrent_requests"] = LimitUse(key.concurrent_requests, self.running)
        return limits


class RequestCount:
    """Counts the requests of one key, and refuses those beyond its limits.

    A minute is a sliding window: in no 60 seconds are there more requests than the limit, and the
    time after which there is room again is known exactly. Requests that were refused do not count.
    `clock` is in seconds.
    """

    def __init__(self, clock: Callable[[], float], what: str = "requests") -> None:
        """`what` errors call them."""
        self._clock = clock
        self._what = what
        self._received: deque[float] = deque()
        self.running = 0

    def begin(self, key: Key) -> None:
        """Count a request, which runs until `end`. Raises `RateLimitError`."""
        self._forget()
        limit = key.requests_per_minute
        if limit is not None and len(self._received) >= limit:
            seconds = math.ceil(self._received[-limit] + WINDOW - self._clock())
            raise RateLimitError(
                f"{self._what} with the API key of {key.name} are limited to {limit} per minute; "
                f"try again in {seconds} s",
                retry_after=seconds,
            )
        if key.concurrent_requests is not None and self.running >= key.concurrent_requests:
            raise RateLimitError(
                f"{self._what} with the API key of {key.name} are limited to "
                f"{key.concurrent_requests} at once; try again when one of them has ended",
                retry_after=1,
            )
        if limit is not None:
            self._received.append(self._clock())
        self.running += 1

    def go_on(self) -> None:
        """Count a request that runs already, begun at a count that is gone."""
        self.running += 1

    def end(self) -> None:
        """A request has ended."""
        self.running -= 1

    @property
    def seen(self) -> RequestsSeen:
        """What it comes to now."""
        self._forget()
        now = self._clock()
        reset = self._received[-1] + WINDOW - now if self._received else 0.0
        return RequestsSeen(len(self._received), reset, self.running)

    def _forget(self) -> None:
        over = self._clock() - WINDOW
        while self._received and self._received[0] <= over:
            self._received.popleft()
