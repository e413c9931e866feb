"""`/v1/completions` over real HTTP."""

import json
from typing import Any

import pytest

from tests.conftest import ServeScripted

HELLO = ["Hel", "lo ", "there"]


def test_whole_and_streamed(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(HELLO)
    create = server.openai.completions.create
    answer = create(model="scripted", prompt="Say hello")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [
        (0, "Hello there", "stop")
    ]
    assert answer.usage
    assert answer.usage.prompt_tokens == len("Say hello")
    chunks = list(
        create(
            model="scripted",
            prompt="Say hello",
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == answer.usage


def test_text_is_left_as_it_is(serve_scripted: ServeScripted) -> None:
    text = "\n <think>x</think> <tool_call>{}</tool_call>\n"
    server = serve_scripted([text], reasoning="think", tools="hermes")
    answer = server.openai.completions.create(model="scripted", prompt="x")
    assert answer.choices[0].text == text


@pytest.mark.parametrize("prompt", ["hi", [104, 105], [[104, 105]], ["hi"]])
def test_prompts_as_text_or_token_ids(serve_scripted: ServeScripted, prompt: Any) -> None:
    server = serve_scripted(lambda prompt, index: [prompt])
    answer = server.openai.completions.create(model="scripted", prompt=prompt)
    assert answer.choices[0].text == "hi"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts(serve_scripted: ServeScripted, stream: bool) -> None:
    server = serve_scripted(lambda prompt, index: [prompt, str(index)])
    body = {"prompt": ["a", "b"], "n": 2, "stream": stream}
    texts = [""] * 4
    if stream:
        answer = server.http.post("/v1/completions", json=body).text
        events = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
    else:
        response = server.http.post("/v1/completions", json=body).json()
        choices = response["choices"]
        assert response["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 4 * 3,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
    for choice in choices:
        texts[choice["index"]] += choice["text"]
    assert texts == ["a0", "a1", "b0", "b1"]


def test_logprobs(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["Hé", "!"])
    create = server.openai.completions.create
    logprobs: Any = create(model="scripted", prompt="x", logprobs=2).choices[0].logprobs
    assert logprobs.tokens == ["H", "é", "!"]
    assert logprobs.token_logprobs == [0.0, 0.0, 0.0]
    assert logprobs.top_logprobs == [{"H": 0.0}, {"é": 0.0}, {"!": 0.0}]
    assert logprobs.text_offset == [0, 1, 2]
    offsets = [
        offset
        for chunk in create(model="scripted", prompt="x", logprobs=2, stream=True)
        for offset in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.text_offset) or []
    ]
    assert offsets == [0, 1, 2]
