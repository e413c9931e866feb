"""Engines of which it is certain that they draft."""

from itertools import count
from typing import Any

from enginebay.engine.batching.speculation import Speculation


def drafts_pay(engine: Any) -> None:
    """Let it believe from now on that every step takes as long, and drafting no time."""
    divider = engine._scheduler._divider
    even = engine._runner.memory.even
    divider._clock = lambda: 0.0
    divider._speculation = Speculation(map(float, count()).__next__, even=even)
