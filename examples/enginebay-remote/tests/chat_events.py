"""Events of chats as servers send them, and a backend over a fake server."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from enginebay_remote import create
from enginebay_remote.chat_reading import ChatReader
from enginebay_remote.http import read_events
from enginebay_remote.options import Options
from fake import Answer, Fake, events

from enginebay import (
    BackendSettings,
    Chat,
    Delta,
    GenerationRequest,
    ModelInfo,
    Part,
    SamplingParams,
    ToolCallDelta,
)

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}


def event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """An event with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def called(index: int | None, id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    """A piece of a call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    piece = {"index": index, "id": id, "type": "function", "function": function}
    piece["function"] = {key: value for key, value in function.items() if value is not None}
    return {key: value for key, value in piece.items() if value is not None}


def usage(**more: Any) -> dict[str, Any]:
    """What a server tells of tokens."""
    return {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, **more}


OPENING = event({"role": "assistant", "content": ""})


def request(sampling: SamplingParams | None = None, n: int = 1, **chat: Any) -> GenerationRequest:
    """A request for a chat."""
    asked = Chat(**{"messages": (USER,), **chat})
    return GenerationRequest(
        request_id="r",
        prompt_token_ids=(),
        chat=asked,
        n=n,
        sampling=sampling or SamplingParams(),
    )


def hosted(server: str, *answers: Answer) -> tuple[dict[str, list[Answer]], dict[str, Any]]:
    """What a fake server answers, and the options to take it for one of a kind."""
    card = {"id": "m", "owned_by": "somebody", "context_window": 99}
    return {"/v1/models": [(200, {"data": [card]})], PATH: list(answers)}, {"server": server}


async def run(
    running: Fake, asked: GenerationRequest, **options: Any
) -> tuple[list[Delta], ModelInfo]:
    """The deltas of a request for that server, and what is said of its model."""
    values = Options.model_validate({"retries": 0, **options})
    backend = create(BackendSettings(name="m", path=running.url, options=values))
    info = await backend.start()
    try:
        async with aclosing(backend.generate(asked)) as deltas:
            return [delta async for delta in deltas], info
    finally:
        await backend.close()


SAID = events(event({"content": "x"}), event({}, "stop"), {"choices": [], "usage": usage()})


def joined(deltas: Sequence[Delta]) -> list[Part]:
    """Neighbours of one kind as one part."""
    parts: list[Part] = []
    for part in itertools.chain.from_iterable(delta.parts for delta in deltas):
        last = parts[-1] if parts else None
        if isinstance(part, ToolCallDelta):
            if isinstance(last, ToolCallDelta) and last.index == part.index:
                assert part.name is None
                part = ToolCallDelta(
                    last.index, last.name, last.arguments + part.arguments, last.id
                )
                parts.pop()
        elif isinstance(last, type(part)):
            part = type(part)(last.text + part.text)
            parts.pop()
        parts.append(part)
    return parts


async def read(chunks: Sequence[bytes]) -> list[Delta]:
    """What a reader makes of these bytes."""

    async def arriving() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    reader = ChatReader(request())
    async with aclosing(read_events(arriving())) as found:
        deltas = [delta async for each in found for delta in reader.deltas(each)]
    return [*deltas, *reader.finish()]
