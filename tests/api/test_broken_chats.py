"""What clients get of a backend that takes chats and breaks its promises: never nonsense."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import pytest

from enginebay import (
    Backend,
    ContentDelta,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    ReasoningDelta,
    TokenCounts,
    TokenLogprob,
    ToolCallDelta,
)
from tests.support import Server, plugins_with, scripted_config, serve

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "get"}}],
    "logprobs": True,
}
END = Delta(finish_reason="stop")


class Broken(Backend):
    """Says whatever deltas it is given."""

    deltas: Sequence[Delta] = ()

    async def start(self) -> ModelInfo:
        return ModelInfo(context_length=0, vocab_size=0, chats=True)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        for delta in self.deltas:
            yield delta

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise InvalidRequestError("no tokens")

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        raise InvalidRequestError("no tokens")

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Broken]]:
    backend = Broken()
    with serve(scripted_config(), plugins_with(scripted=lambda settings: backend)) as server:
        yield server, backend


def whole(server: Server, **more: Any) -> Any:
    answer = server.http.post(CHAT, json=BODY | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(server: Server, **more: Any) -> list[Any]:
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}} | more
    answer = server.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(each) for each in data]


@pytest.mark.parametrize(
    "deltas",
    [
        [END, Delta(usage=TokenCounts(prompt_tokens=3, completion_tokens=4))],
        [END, Delta(finish_reason="stop", usage=TokenCounts(prompt_tokens=3, completion_tokens=4))],
        [Delta(usage=TokenCounts(prompt_tokens=3, completion_tokens=4))],
    ],
)
def test_usage_counts_wherever_it_comes(
    served: tuple[Server, Broken], deltas: Sequence[Delta]
) -> None:
    """Behind the finish, say, as OpenAI's own streams have it."""
    server, backend = served
    backend.deltas = [Delta(parts=(ContentDelta("a"),)), *deltas]
    for answer in (whole(server), chunks(server)[-1]):
        usage = answer["usage"]
        counts = [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")]
        assert counts == [3, 4, 7]


def call(index: int, name: str | None, arguments: str, id: str | None = None) -> Delta:
    return Delta(parts=(ToolCallDelta(index, name, arguments, id),))


@pytest.mark.parametrize("one", [False, True])
def test_calls_are_numbered_and_named_once(served: tuple[Server, Broken], one: bool) -> None:
    """Whatever their pieces have: indices of their own, names again, pieces in turns."""
    server, backend = served
    backend.deltas = [
        call(5, "get", "{", "a"),
        call(-1, "get", "["),
        call(5, "get", "}", "b"),
        call(-1, None, "]"),
        END,
    ]
    more = {"parallel_tool_calls": not one}
    [choice] = whole(server, **more)["choices"]
    said = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert said == (["{}"] if one else ["{}", "[]"])
    assert choice["message"]["tool_calls"][0]["id"] == "a"
    assert choice["finish_reason"] == "tool_calls"
    deltas = [each["delta"] for chunk in chunks(server, **more) for each in chunk["choices"]]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert [piece["index"] for piece in pieces] == ([0, 0] if one else [0, 1, 0, 1])
    begun = 1 if one else 2
    assert all(piece["function"]["name"] == "get" and piece["id"] for piece in pieces[:begun])
    assert not any("id" in piece or "name" in piece["function"] for piece in pieces[begun:])


@pytest.mark.parametrize(
    "delta",
    [
        call(0, None, "{}"),
        Delta(index=7, parts=(ContentDelta("a"),)),
        Delta(index=-1, parts=(ContentDelta("a"),)),
        Delta(parts=(ContentDelta("a\ud83d"),)),
    ],
    ids=["call without a name", "no such choice", "choice below 0", "half a character"],
)
def test_what_no_client_could_use_is_an_error(served: tuple[Server, Broken], delta: Delta) -> None:
    """With a message, over a connection that lives on."""
    server, backend = served
    backend.deltas = [delta, END]
    for stream in (False, True, False):
        answer = server.http.post(CHAT, json=BODY | {"stream": stream})
        assert answer.status_code == 500
        assert answer.json()["error"]["message"]
    backend.deltas = [Delta(parts=(ContentDelta("a"),)), delta, END]
    assert chunks(server)[-1]["error"]["message"]


def logprob(text: str) -> TokenLogprob:
    return TokenLogprob(-1, text, -0.5)


@pytest.mark.parametrize(
    "deltas",
    [
        [
            Delta(parts=(ReasoningDelta("Hm"), ContentDelta("ab")), logprobs=(logprob("ab"),)),
            Delta(parts=(ContentDelta("c"),), logprobs=(logprob("c"),), finish_reason="stop"),
        ],
        [
            Delta(parts=(ReasoningDelta("Hm"), ContentDelta("ab", (logprob("ab"),)))),
            Delta(parts=(ContentDelta("c", (logprob("c"),)),), finish_reason="stop"),
        ],
    ],
    ids=["of the delta", "of its parts"],
)
def test_logprobs_of_content_beside_reasoning(
    served: tuple[Server, Broken], deltas: Sequence[Delta]
) -> None:
    """They are those of the content, in the delta's field or in the parts'."""
    server, backend = served
    backend.deltas = deltas
    [choice] = whole(server)["choices"]
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["ab", "c"]
    streamed = [
        (each["delta"]["content"], [entry["token"] for entry in each["logprobs"]["content"]])
        for chunk in chunks(server)
        for each in chunk["choices"]
        if each.get("logprobs")
    ]
    assert streamed == [("ab", ["ab"]), ("c", ["c"])]
