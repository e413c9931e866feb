"""Restart delays for dead engines."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds: `first`, then doubled each time, up to `longest`.

    An engine that ran for `settled` seconds counts as healthy: the next wait is `first` again.
    """

    first: float = 1.0
    longest: float = 60.0
    settled: float = 60.0

    def delay(self, failures: int) -> float:
        """The delay after this many consecutive failures, from 1."""
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest)
