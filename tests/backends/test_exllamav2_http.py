"""The demo model behind a server on the backend exllamav2, next to the same one on hf."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from enginebay.config.schema import Config
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.constrained import NOTE, SCHEMAS, check_calls, check_json, tools
from tests.support import DEMO_MODEL, Server, engine_backend, plugins_with, serve

MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
MODEL = "enginebay-demo"


@pytest.fixture(scope="module")
def server(load_exllamav2: LoadExLlamaV2) -> Iterator[Server]:
    create = engine_backend(lambda: load_exllamav2(DEMO_MODEL, adapters={}))
    config = {"models": [{"name": MODEL, "backend": "exl", "path": str(DEMO_MODEL)}]}
    with serve(Config.model_validate(config), plugins_with(exl=create)) as running:
        yield running


def both(server: Server, demo: Server, **body: Any) -> list[Any]:
    return [
        each.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=40, **body
        )
        for each in (server, demo)
    ]


def test_greedy_answers_are_those_of_hf(server: Server, demo: Server) -> None:
    ours, theirs = both(server, demo)
    assert ours.choices[0].message == theirs.choices[0].message
    assert ours.choices[0].finish_reason == theirs.choices[0].finish_reason
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert ours.usage.completion_tokens == theirs.usage.completion_tokens


def test_streamed_is_whole(server: Server, demo: Server) -> None:
    ours, theirs = both(server, demo, stream=True)
    assert ["".join(c.choices[0].delta.content or "" for c in s) for s in (ours, theirs)] == [
        both(server, demo)[0].choices[0].message.content
    ] * 2


def test_logprobs_are_those_of_hf(server: Server, demo: Server) -> None:
    ours, theirs = (
        answer.choices[0].logprobs.content
        for answer in both(server, demo, logprobs=True, top_logprobs=3)
    )
    assert [entry.token for entry in ours] == [entry.token for entry in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=0.01)
        assert len(mine.top_logprobs) == 3


async def test_many_at_once(server: Server) -> None:
    async with server.async_openai() as client:

        async def ask(number: int) -> Any:
            return await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, temperature=1.5, seed=number % 3, max_tokens=12
            )

        answers = await asyncio.gather(*map(ask, range(12)))
    texts = [answer.choices[0].message for answer in answers]
    assert texts[:3] * 4 == texts


def test_json_schemas_and_calls(server: Server) -> None:
    create = server.openai.chat.completions.create
    wild: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 1.5, "n": 4}
    schema: Any = {"name": "note", "schema": NOTE, "strict": True}
    kept = create(
        **wild,
        seed=1,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    for choice in kept.choices:
        if choice.finish_reason == "stop":
            check_json(choice, NOTE)
    assert any(choice.finish_reason == "stop" for choice in kept.choices)
    called = create(**wild, seed=2, max_tokens=320, tools=tools(), tool_choice="required")
    finished = [c for c in called.choices if c.finish_reason == "tool_calls"]
    assert finished
    for choice in finished:
        check_calls(choice, list(SCHEMAS))


def test_stops_and_budgets(server: Server) -> None:
    [ours] = server.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, stop="capital", max_tokens=40
    ).choices
    assert (ours.message.content, ours.finish_reason) == ("The ", "stop")


def test_what_is_not_there_is_named(server: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 2, "prompt_logprobs": 1, "top_a": 0.1}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-unsupported-params"] == "prompt_logprobs"


def test_a_ban_beside_a_schema_is_a_400(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            response_format={"type": "json_object"},
            extra_body={"banned_strings": ["x"]},
        )
    assert caught.value.param == "banned_strings"


def test_banned_strings_and_healing(server: Server) -> None:
    body: dict[str, Any] = {"prompt": "The weather is", "max_tokens": 20, "temperature": 0}
    plain = server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    word = plain.split()[0]
    banned: httpx2.Response = server.http.post(
        "/v1/completions", json={**body, "banned_strings": word, "token_healing": True}
    )
    assert banned.status_code == 200
    assert word.lower() not in banned.json()["choices"][0]["text"].lower()
