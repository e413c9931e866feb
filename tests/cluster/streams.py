"""Answers that run while something fails, and waiting for what other processes do."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import APIError, AsyncOpenAI

from tests.cluster.asking import said, whole

SLACK = 3.0
"""Seconds that everything may take longer than is promised, on a machine with other work."""


def note(what: str, seconds: float) -> None:
    """Say how long something took: `pytest -rP` shows it."""
    print(f"NOTE {what}: {seconds:.1f} s")


async def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until it holds. It is called on a thread, so that streams are read meanwhile."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < began + seconds, "it did not happen"
        await asyncio.sleep(0.2)


@dataclass(frozen=True)
class Answer:
    """What was said, and the error that it ended with; when by the monotonic clock."""

    text: str
    error: APIError | None
    begun: float
    ended: float


async def answer(openai: AsyncOpenAI, content: str, tokens: int, *more: Any) -> Answer:
    """As `said`."""
    begun = time.monotonic()
    text, error = await said(openai, content, tokens, *more)
    return Answer(text, error, begun, time.monotonic())


@dataclass
class Answers:
    """Answers of so many tokens each that run at once."""

    tokens: int
    asked: list[asyncio.Task[Answer]] = field(default_factory=list)

    async def begin(self, openai: AsyncOpenAI, number: int) -> None:
        """Ask for them; returns when all have said something."""
        begun = [asyncio.Event() for _ in range(number)]
        self.asked = [
            asyncio.create_task(answer(openai, f"{i} " * 20, self.tokens, "talker", each))
            for i, each in enumerate(begun)
        ]
        await asyncio.gather(*(each.wait() for each in begun))

    async def broken(self) -> list[Answer]:
        """Those that were lost with their engine, when all have ended; others are whole."""
        answers = await asyncio.gather(*self.asked)
        for each in answers:
            assert whole(self.tokens).startswith(each.text), "something is lost or doubled"
            if each.error:
                assert getattr(each.error, "code", None) == "engine_dead", each.error
            else:
                assert each.text == whole(self.tokens)
        return [each for each in answers if each.error]


@asynccontextmanager
async def trickle(openai: AsyncOpenAI, every: float = 0.3) -> AsyncIterator[None]:
    """New requests all the while, so many seconds apart, none of which may fail."""
    answers: list[Answer] = []
    asked: list[asyncio.Task[None]] = []

    async def one(number: int) -> None:
        answers.append(await answer(openai, f"new {number}", 3))

    async def ask() -> None:
        while True:
            asked.append(asyncio.create_task(one(len(asked))))
            await asyncio.sleep(every)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(*asked)
    failed = [each for each in answers if each.error or each.text != whole(3)]
    assert not failed, failed[:3]
    note("the longest of new requests took", max(each.ended - each.begun for each in answers))
