"""A clock that tests move."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class FakeTimer:
    """A call that has not been made yet."""

    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Stands still until a test lets it go on, on the event loop of whoever has timers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def utc(self) -> datetime:
        """The time of day."""
        return NOON + timedelta(seconds=self.now - 1000)

    def call_later(self, delay: float, callback: Callable[[], object]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + delay, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        """Make what is due, the earliest first, each at its time."""
        end = self.now + seconds
        while due := [each for each in self.timers if each.at <= end or each.cancelled]:
            first = min(due, key=lambda each: each.at)
            self.timers.remove(first)
            if not first.cancelled:
                self.now = max(self.now, first.at)
                first.callback()
        self.now = end
