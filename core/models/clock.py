"""Time, as far as models wait for it; tests bring another one."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It is not to come any more."""


class Clock(Protocol):
    """Seconds since some moment, and calls on the event loop after some of them."""

    def time(self) -> float:
        """Now; never goes back."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in `delay` seconds."""


class LoopClock:
    """The running event loop's."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
