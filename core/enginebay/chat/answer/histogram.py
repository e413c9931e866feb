"""Histograms of durations, updated on the event loop."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts per bucket; `bounds` are the ascending upper bounds.

    `prometheus_client` has one that any thread may use; without its locks a value costs a fifth.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value this many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds and how many values are not above them, as Prometheus has them."""
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        below = 0
        result: list[tuple[str, float]] = []
        for name, count in zip(names, self._counts, strict=True):
            below += count
            result.append((name, below))
        return result
