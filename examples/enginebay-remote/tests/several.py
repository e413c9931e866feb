"""Several fake servers as one model, and a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any

from chat_events import PATH, event, request, usage
from enginebay_remote.chat import ChatBackend
from enginebay_remote.options import Options
from fake import Answer, Fake, events, fake

from enginebay import BackendSettings, ContentDelta, GenerationRequest, ReportBatchSize


class Clock:
    """The watches of so many servers, which sleep until the test wakes them."""

    def __init__(self, watches: int = 2) -> None:
        self._watches = watches
        self._sleepers: dict[asyncio.Future[None], float] = {}
        self._changed = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep until `wake`."""
        woken = asyncio.get_running_loop().create_future()
        self._sleepers[woken] = seconds
        self._changed.set()
        try:
            await woken
        finally:
            self._sleepers.pop(woken, None)

    async def waits(self) -> list[float]:
        """For how many seconds each sleeps, sorted, once all do."""
        async with asyncio.timeout(60):
            while len(asleep := self._asleep()) < self._watches:
                self._changed.clear()
                await self._changed.wait()
        return sorted(asleep.values())

    async def wake(self, seconds: float | None = None) -> list[float]:
        """Wake those who sleep that long, or all; the `waits` after that."""
        assert seconds in (None, *await self.waits())
        self.wake_only(seconds)
        return await self.waits()

    def wake_only(self, seconds: float | None = None) -> None:
        """The same without waiting for what they do."""
        for woken, asked in self._asleep().items():
            if seconds in (None, asked):
                del self._sleepers[woken]
                woken.set_result(None)

    def _asleep(self) -> dict[asyncio.Future[None], float]:
        return {woken: s for woken, s in self._sleepers.items() if not woken.done()}


CARD = {"id": "m", "owned_by": "somebody", "context_window": 4096}


def said(text: str) -> bytes:
    """A whole streamed answer."""
    closing: dict[str, Any] = {"choices": [], "usage": usage()}
    return events(event({"content": text}), event({}, "stop"), closing)


def answering(text: str, *first: Answer, card: Any = None) -> dict[str, list[Answer]]:
    """A server whose answers are `first`, then always that text."""
    models = {"data": [CARD if card is None else card]}
    return {"/v1/models": [(200, models)], PATH: [*first, (200, said(text))]}


@contextmanager
def fakes(*answers: dict[str, list[Answer]]) -> Iterator[list[Fake]]:
    """A running server for each."""
    with ExitStack() as stack:
        yield [stack.enter_context(fake(each)) for each in answers]


def backend(
    at: Sequence[Fake],
    clock: Clock,
    report: ReportBatchSize = lambda choices: None,
    **options: Any,
) -> ChatBackend:
    """A backend for these servers, not started."""
    more = [each.url for each in at[1:]]
    values = Options.model_validate({"servers": more, **options})
    settings = BackendSettings(name="m", path=at[0].url, options=values, report_batch_size=report)
    return ChatBackend(settings, clock.sleep)


@asynccontextmanager
async def started(at: Sequence[Fake], clock: Clock, **options: Any) -> AsyncIterator[ChatBackend]:
    """The same, started."""
    made = backend(at, clock, **options)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


def chat(*texts: str) -> GenerationRequest:
    """A request for a chat with these messages, the first one and every other the user's."""
    roles = ("user", "assistant")
    messages = tuple(
        {"role": roles[number % 2], "content": text} for number, text in enumerate(texts)
    )
    return request(messages=messages)


async def answer(made: ChatBackend, asked: GenerationRequest | None = None) -> str:
    """The whole text."""
    async with aclosing(made.generate(asked or chat("Hi"))) as deltas:
        parts = [part async for delta in deltas for part in delta.parts]
    return "".join(part.text for part in parts if isinstance(part, ContentDelta))


def asked_of(server: Fake) -> int:
    """How many chats it was asked for."""
    return len(server.bodies(PATH))
