"""The clock of models and fronts, and waiting by it; tests provide their own."""

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


async def within(clock: Clock, seconds: float, event: asyncio.Event) -> bool:
    """Wait for an event, so long at most; whether it is set."""
    if event.is_set():
        return True
    over = asyncio.Event()
    timer = clock.call_later(seconds, over.set)
    waiters = [asyncio.ensure_future(each.wait()) for each in (event, over)]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        return event.is_set()
    finally:
        timer.cancel()
        for waiter in waiters:
            waiter.cancel()


async def pause(clock: Clock, seconds: float) -> None:
    """Wait for so long."""
    await within(clock, seconds, asyncio.Event())
