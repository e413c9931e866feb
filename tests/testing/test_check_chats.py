"""`check_backend` of models that take chats: it passes for one that keeps its promises only."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from enginebay import (
    Chat,
    ContentDelta,
    Delta,
    EngineBackend,
    Part,
    ReasoningDelta,
    ServingError,
    TokenCounts,
    ToolCallDelta,
)
from enginebay.testing import BrokenPromiseError, ScriptedChat, check_backend

Steps = Iterable[tuple[str, Delta | ServingError]]


def say(chat: Chat, index: int) -> Iterator[str | Part]:
    if chat.response_format:
        yield '{"count": 42}'
        return
    yield ReasoningDelta("Hm")
    yield from ["Hi", " the", "re,", " how", " are", " you", "?"]
    yield ToolCallDelta(0, "get", "{")
    yield ToolCallDelta(0, None, "}")


class Honest(ScriptedChat):
    def __init__(self) -> None:
        super().__init__(say)

    def changed(self, delta: Delta) -> Delta:
        return delta

    def step(self) -> Steps:
        for request_id, item in super().step():
            yield request_id, self.changed(item) if isinstance(item, Delta) else item


async def test_keeps_every_promise() -> None:
    await check_backend(Honest, max_tokens=30)


async def test_keeps_every_promise_in_a_process_of_its_own() -> None:
    """Chats, parts and usage are pickled on their way."""
    await check_backend(lambda: EngineBackend(Honest, isolation="process"), max_tokens=30)


class SaysText(Honest):
    def changed(self, delta: Delta) -> Delta:
        return replace(delta, text="Hi")


class SaysNothing(Honest):
    def changed(self, delta: Delta) -> Delta:
        return replace(delta, parts=())


class ForgetsNames(Honest):
    def changed(self, delta: Delta) -> Delta:
        parts = tuple(
            replace(part, name=None) if isinstance(part, ToolCallDelta) else part
            for part in delta.parts
        )
        return replace(delta, parts=parts)


class CountsFromOne(Honest):
    def changed(self, delta: Delta) -> Delta:
        parts = tuple(
            replace(part, index=part.index + 1) if isinstance(part, ToolCallDelta) else part
            for part in delta.parts
        )
        return replace(delta, parts=parts)


class CountsNoPrompt(Honest):
    def changed(self, delta: Delta) -> Delta:
        usage = TokenCounts(prompt_tokens=0, completion_tokens=5)
        return replace(delta, usage=usage if delta.usage else None)


class CountsOneChoice(Honest):
    def changed(self, delta: Delta) -> Delta:
        usage = TokenCounts(prompt_tokens=3, completion_tokens=5)
        return replace(delta, usage=usage if delta.usage else None)


class CountsMoreThoughtThanTokens(Honest):
    def changed(self, delta: Delta) -> Delta:
        return replace(delta, usage=delta.usage and replace(delta.usage, reasoning_tokens=1000))


class CountsMoreCachedThanThereIs(Honest):
    def changed(self, delta: Delta) -> Delta:
        return replace(delta, usage=delta.usage and replace(delta.usage, cached_tokens=1000))


class IgnoresMaxTokens(Honest):
    def add_request(self, request):  # type: ignore[no-untyped-def]
        sampling = replace(request.sampling, max_tokens=40)
        super().add_request(replace(request, sampling=sampling))


class ShowsStops(Honest):
    def changed(self, delta: Delta) -> Delta:
        stop = delta.stop_reason
        return replace(delta, parts=(*delta.parts, ContentDelta(str(stop)))) if stop else delta


class Rambles(ScriptedChat):
    """Whatever form its content is to have."""

    def __init__(self) -> None:
        super().__init__(["Hi", " the", "re,", " how", " are", " you", "?"])


@pytest.mark.parametrize(
    ("create", "promise"),
    [
        (SaysText, 2),
        (SaysNothing, 2),
        (ForgetsNames, 2),
        (CountsFromOne, 2),
        (CountsNoPrompt, 4),
        (CountsOneChoice, 4),
        (CountsMoreThoughtThanTokens, 4),
        (CountsMoreCachedThanThereIs, 4),
        (IgnoresMaxTokens, 7),
        (ShowsStops, 2),
        (Rambles, 9),
    ],
)
async def test_names_the_promise_that_is_broken(create: type[ScriptedChat], promise: int) -> None:
    with pytest.raises(BrokenPromiseError, match=f"promise {promise}"):
        await check_backend(create, max_tokens=30)
