"""The SDK's models validate what is sent, whatever a request asks for: chunk by chunk, strictly."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from enginebay.testing import ScriptedEngine
from enginebay_conformance.answers import SUM
from enginebay_conformance.endpoint import Endpoint, connect
from enginebay_conformance.shapes import expect_shape
from enginebay_conformance.tools import ASKED, WEATHER
from tests.conformance.conftest import model, say
from tests.support import engine_backend, plugins_with, scripted_config, serve

OLD: dict[str, Any] = {"messages": ASKED["messages"], "functions": [WEATHER["function"]]}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"n": 3, "max_tokens": 5},
    "stopped": {"stop": ["went"]},
    "stopped by a token": {"stop_token_ids": [ord("w")]},
    "with its stop": {"stop": ["went"], "include_stop_str_in_output": True},
    "reasoning": {"messages": SUM},
    "reasoning in the content": {"messages": SUM, "separate_reasoning": False},
    "tools": ASKED,
    "one tool": {**ASKED, "parallel_tool_calls": False},
    "functions": {**OLD, "max_tokens": 200},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "tokens as ids": {"logprobs": True, "return_tokens_as_token_ids": True},
    "token ids": {"n": 2, "return_token_ids": True},
    "logprobs of reasoning": {"messages": SUM, "logprobs": True},
    "logprobs beside tools": {**ASKED, "logprobs": True},
    "prompt logprobs": {"prompt_logprobs": 1},
    "going on": {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The"}],
        "add_generation_prompt": False,
        "echo": True,
    },
    "one token": {"max_tokens": 1},
}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
TEXTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"prompt": ["One", "Two"], "n": 2},
    "logprobs": {"logprobs": 2},
    "no candidates": {"logprobs": 0},
    "echo": {"echo": True},
    "token ids": {"return_token_ids": True},
    "best of": {"best_of": 3, "n": 2},
    "stopped": {"stop": ["went"]},
}


@pytest.fixture(scope="module", params=[False, True], ids=["", "usage with finish"])
def asked(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """The scripted server, as it is and with what the config can change of the wire."""
    server = {"usage_with_finish": request.param}
    plugins = plugins_with(scripted=engine_backend(Embedding))
    with (
        serve(scripted_config(**model(server=server)), plugins) as running,
        connect(running.url) as endpoint,
    ):
        yield endpoint


class Embedding(ScriptedEngine):
    """Says what is asked for, and embeds."""

    def __init__(self) -> None:
        super().__init__(say)
        self.info = replace(self.info, embedding_size=2)

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[1.0, -0.5] for _ in prompts]


@pytest.mark.parametrize("name", CHATS)
def test_chats(asked: Endpoint, name: str) -> None:
    # MLC-27 MLC-39
    expect_shape(ChatCompletion, asked.chat(**CHATS[name]))
    for options in ({}, {"include_usage": True}, CONTINUOUS):
        chunks = asked.stream(**CHATS[name], stream_options=options).chunks
        assert len(chunks) >= 3
        for chunk in chunks:
            expect_shape(ChatCompletionChunk, chunk)


@pytest.mark.parametrize("name", TEXTS)
def test_texts(asked: Endpoint, name: str) -> None:
    expect_shape(Completion, asked.complete(**TEXTS[name]))
    if "best_of" in TEXTS[name]:
        return  # of which there are no streams
    for options in ({}, {"include_usage": True}, CONTINUOUS):
        for chunk in asked.stream_text(**TEXTS[name], stream_options=options).chunks:
            for choice in chunk["choices"]:  # null on the wire, for which the type has no word
                choice["finish_reason"] = choice["finish_reason"] or "stop"
            expect_shape(Completion, chunk)


def test_embeddings(asked: Endpoint) -> None:
    response = asked.post("/v1/embeddings", {"model": asked.model, "input": ["a", "b"]})
    expect_shape(CreateEmbeddingResponse, response.json())
