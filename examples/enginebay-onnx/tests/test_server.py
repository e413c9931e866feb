"""The model in the whole server, called as clients do."""

import json

import pytest
from openai import OpenAI

STORY = [{"role": "user", "content": "Tell me a story about a train."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(url: str):
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client: OpenAI, messages=STORY, **more):
    return client.chat.completions.create(model="demo", messages=messages, **more)


def test_streamed_and_whole_are_the_same(client: OpenAI) -> None:
    params = {"temperature": 0, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}
    whole = ask(client, **params)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **params))
    streamed = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in streamed)
    assert text == whole.choices[0].message.content
    assert streamed[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    entries = [e for c in streamed if c.logprobs for e in c.logprobs.content]
    assert [e.token for e in entries] == [e.token for e in whole.choices[0].logprobs.content]
    assert "".join(entry.token for entry in entries) == text
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    first = whole.choices[0].logprobs.content[0]
    assert first.logprob == pytest.approx(entries[0].logprob, abs=1e-4)  # by the prefix cache


def test_stop(client: OpenAI) -> None:
    whole = ask(client, temperature=0, max_tokens=40).choices[0].message.content
    stop = whole[20:25]
    choice = ask(client, temperature=0, max_tokens=40, stop=[stop]).choices[0]
    assert choice.message.content == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"


def test_n_and_seed(client: OpenAI) -> None:
    params = {"n": 3, "seed": 5, "temperature": 1.2, "max_tokens": 30}
    first, second = ask(client, **params), ask(client, **params)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3
    assert first.usage.prompt_tokens == second.usage.prompt_tokens
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1
    assert len(ask(client, n=9, max_tokens=2).choices) == 9  # more than are decoded together


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
def test_tools(client: OpenAI, tool_choice: str) -> None:
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = ask(client, messages, tools=[WEATHER], tool_choice=tool_choice, temperature=0)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Oslo"},
    )


def test_a_schema_is_kept_to_behind_thought(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    answer = ask(
        client,
        [{"role": "user", "content": "What is 7 + 5?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}},
        temperature=0,
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"sum"}
    assert answer.choices[0].message.reasoning_content


def test_thought_ends_with_its_budget(client: OpenAI) -> None:
    answer = ask(
        client,
        [{"role": "user", "content": "What is 7 + 5?"}],
        temperature=0,
        extra_body={"reasoning_budget": 3},
    )
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3 + 2  # with the two tags
    assert answer.choices[0].message.content
