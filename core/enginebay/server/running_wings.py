"""The wings of a server: asked, mounted and run, so that one that fails stops nothing else."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI

from enginebay.contract.wing import Wing

logger = logging.getLogger(__name__)

T = TypeVar("T")


def ask(wing: Wing, question: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
    """Return what a method of a wing returns, or nothing if it fails, which the log says."""
    try:
        return question()
    except (Exception, SystemExit):
        name = question.__name__
        logger.exception("wing %s: %s() failed; the server continues without it", wing.name, name)
        return {}


def mount(app: FastAPI, wing: Wing, kernel: Any) -> None:
    """Add the routes of a wing: all of them, or none if a router cannot be made or added."""
    before = list(app.router.routes)
    try:
        for router in wing.routers(kernel):
            app.include_router(router)
    except (Exception, SystemExit):
        app.router.routes[:] = before
        logger.exception("wing %s: routers() failed; the server has none of its routes", wing.name)


@asynccontextmanager
async def running(wings: Sequence[Wing], kernel: Any) -> AsyncGenerator[None, None]:
    """Run the wings: start them in this order, and end them in the other one."""
    async with AsyncExitStack() as stack:
        for wing in wings:
            await stack.enter_async_context(_running(wing, kernel))
        yield


@asynccontextmanager
async def _running(wing: Wing, kernel: Any) -> AsyncGenerator[None, None]:
    """Run a wing in a task of its own, which is all that an error or a task group of it cancels."""
    started, stopping = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(_run(wing, kernel, started, stopping))
    try:
        await started.wait()
        yield
    finally:
        stopping.set()
        await task


async def _run(wing: Wing, kernel: Any, started: asyncio.Event, stopping: asyncio.Event) -> None:
    when = "could not start"
    try:
        async with wing.running(kernel):
            when = "stopped with an error"
            started.set()
            await stopping.wait()
            when = "could not end properly"
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise  # the server exits at once
        logger.exception("wing %s: it %s; the server continues without it", wing.name, when)
    finally:
        started.set()
