"""Waiting by a clock that tests can move."""

import asyncio

from core.models.loading.clock import Clock

BEAT = 2.0
"""Seconds between two signs of life of a front."""

SILENCE = 10.0
"""Seconds without one after which a front has lost what it held."""

SETTLE = 1.0
"""Seconds in which a new ledger lets nobody in: fronts say what runs with them."""

RETRY = 0.2
"""Seconds until something that failed is tried again."""

PATIENCE = 5.0
"""Seconds for which requests wait for a ledger that cannot be reached."""


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
