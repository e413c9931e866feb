"""The run of one answer: requests go out through the `generate` hook, updates come back.

Chat and text completions, streamed and whole, all read the same updates.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from core.chat.collector import Collector
from core.chat.usage import UsageCounter
from core.errors import EngineDeadError
from core.models import LoadedModel
from core.plugins import Plugins
from core.schemas.common import FinishReason
from core.types import Delta, GenerationRequest, Part

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Update:
    """What choice `index` of the answer gained; its last one has the `finish_reason`."""

    index: int
    parts: list[Part]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Generation:
    """One answer: `n` choices for each of its requests, numbered through."""

    def __init__(
        self,
        plugins: Plugins,
        model: LoadedModel,
        requests: Sequence[GenerationRequest],
        new_collector: Callable[[], Collector],
    ) -> None:
        self.model = model
        self.requests = requests
        self.counter = UsageCounter()
        self._plugins = plugins
        self._new_collector = new_collector

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return sum(request.n for request in self.requests)

    async def updates(self) -> AsyncGenerator[Update, None]:
        """Updates of all choices as they arrive. Closing the generator aborts what is running."""
        first = 0
        streams: list[AsyncGenerator[Update, None]] = []
        for request in self.requests:
            self.counter.add_prompt(request)
            streams.append(self._run(request, first))
            first += request.n
        outcome = "aborted"
        try:
            async with aclosing(merge(streams)) as updates:
                async for update in updates:
                    yield update
            outcome = "finished"
        except Exception as error:
            outcome = f"failed: {error}"
            raise
        finally:
            self._log(outcome)

    def _log(self, outcome: str) -> None:
        usage = self.counter.usage
        logger.info(
            "%s %s: %d prompt and %d completion tokens, %s",
            self.model.name,
            self.requests[0].request_id,
            usage.prompt_tokens,
            usage.completion_tokens,
            outcome,
        )

    async def _run(self, request: GenerationRequest, first: int) -> AsyncGenerator[Update, None]:
        collectors = [self._new_collector() for _ in range(request.n)]
        try:
            async with aclosing(self._plugins.generate(self.model.backend, request)) as deltas:
                async for delta in deltas:
                    collector = collectors[delta.index]
                    if collector.finished:
                        continue
                    self.counter.add(delta)
                    yield _update(first, collector, delta)
        except EngineDeadError as error:
            self.model.fail(error.message)
            raise
        for index, collector in enumerate(collectors):
            if not collector.finished:  # a backend that forgot to say so
                yield _update(first, collector, Delta(index=index, finish_reason="stop"))


def _update(first: int, collector: Collector, delta: Delta) -> Update:
    parts = collector.feed(delta)
    finish_reason: FinishReason | None = delta.finish_reason
    if finish_reason == "stop" and collector.has_tool_calls:
        finish_reason = "tool_calls"
    return Update(first + delta.index, parts, finish_reason, delta.stop_reason)


async def merge(streams: Sequence[AsyncGenerator[Update, None]]) -> AsyncGenerator[Update, None]:
    """Updates of several streams in order of arrival. The first error ends all of them."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for update in stream:
                yield update
        return
    arrived: asyncio.Queue[Update | Exception | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[Update, None]) -> None:
        try:
            async with aclosing(stream):
                async for update in stream:
                    arrived.put_nowait(update)
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            match await arrived.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case Update() as update:
                    yield update
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
