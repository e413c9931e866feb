"""The clock of models; tests provide their own."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Clock(Protocol):
    """A monotonic clock and delayed calls on the event loop."""

    def time(self) -> float:
        """Now; never goes back."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in `delay` seconds."""


class LoopClock:
    """The running event loop's clock."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
