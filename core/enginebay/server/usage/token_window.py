"""How many tokens were used in the last minute."""

import math
from collections import deque

WINDOW = 60.0
"""Seconds that limits per minute are about."""

_GRAIN = 0.25
"""Seconds: what is used counts as used at the end of its quarter of a second."""


class TokenWindow:
    """A sliding window over a count, of which it is told how high it is.

    It says at least what was used in the last 60 seconds, and more only by what is older by a grain
    or by the time between two samples.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque([(-math.inf, 0)])  # when, the count then
        self._count = 0

    def sample(self, now: float, count: int) -> None:
        """The count is this high by now; what follows is about this time."""
        at, self._count = math.ceil(now / _GRAIN) * _GRAIN, count
        last, before = self._samples[-1]
        if last == at:
            self._samples[-1] = (at, count)
        elif count != before:
            self._samples.append((at, count))
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()

    @property
    def used(self) -> int:
        """What was used in the 60 seconds before the last sample."""
        return self._count - self._samples[0][1]

    def below(self, limit: int) -> float:
        """When less than the limit is used, if nothing else is meanwhile."""
        return next(at for at, before in self._samples if self._count - before < limit) + WINDOW
