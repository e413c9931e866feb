"""Anthropic's SDK and LangChain, as their users call them."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from enginebay.config.keys import Key
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from enginebay.testing import ScriptedEngine
from tests.support import (
    DEMO_MODEL,
    NO_TLS,
    Server,
    engine_backend,
    plugins_with,
    scripted,
    scripted_config,
    serve,
)

MODEL = "scripted"
USER: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def says(prompt: str, index: int) -> list[str]:
    """A thought and a call; once there is a result of one, an answer."""
    if "rainy" in prompt:
        return ["<think>It ", "rains.</think>", "It is ", "rainy."]
    if "<tools>" in prompt:
        return ["<think>I ", "ask.</think>", *CALL]
    return ["<think>I ", "know.</think>", '{"city": ', '"Oslo"}']


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    config = scripted_config(reasoning="think", tools="hermes")
    with serve(config, plugins_with(scripted=scripted(says, constraints=True))) as running:
        yield running


@contextmanager
def sdk(server: Server, key: str = "none") -> Iterator[anthropic.Anthropic]:
    http = anthropic.DefaultHttpxClient(verify=NO_TLS)
    with anthropic.Anthropic(
        base_url=server.url, api_key=key, max_retries=0, http_client=http
    ) as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with sdk(server) as client:
        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_create(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=500, messages=USER)
    assert text_of(message) == '{"city": "Oslo"}'
    assert message.stop_reason == "end_turn"
    assert message._request_id is not None
    assert message._request_id.startswith("req_")
    counted = client.messages.count_tokens(model=MODEL, messages=USER)
    assert counted.input_tokens == message.usage.input_tokens  # MSG-5


def test_the_streams_accumulator(client: anthropic.Anthropic) -> None:
    # MSG-1 MSG-2 MSG-3
    asked: Any = {"model": MODEL, "max_tokens": 500, "messages": USER, "tools": [WEATHER]}
    asked["thinking"] = {"type": "adaptive"}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    thought, call = final.content
    assert (thought.type, call.type) == ("thinking", "tool_use")
    assert thought.model_dump() == whole.content[0].model_dump()
    assert call.to_dict()["input"] == {"city": "Oslo"}
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage == whole.usage
    with client.messages.stream(model=MODEL, max_tokens=500, messages=USER) as stream:
        assert "".join(stream.text_stream) == '{"city": "Oslo"}'
    events = client.messages.create(model=MODEL, max_tokens=9, messages=USER, stream=True)
    assert [event.type for event in events][-1] == "message_stop"


def test_async_client(server: Server) -> None:
    async def asked() -> Any:
        http = anthropic.DefaultAsyncHttpxClient(verify=NO_TLS)
        async with (
            anthropic.AsyncAnthropic(
                base_url=server.url, api_key="none", max_retries=0, http_client=http
            ) as client,
            client.messages.stream(model=MODEL, max_tokens=500, messages=USER) as stream,
        ):
            return await stream.get_final_message()

    assert text_of(asyncio.run(asked())) == '{"city": "Oslo"}'


@pytest.mark.parametrize("streams", [False, True])
def test_a_loop_with_tools(client: anthropic.Anthropic, streams: bool) -> None:
    # MSG-8 MSG-12 MSG-15
    messages = list(USER)
    asked: Any = {"model": MODEL, "max_tokens": 500, "tools": [WEATHER]}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 100}
    for _ in range(3):
        if streams:
            with client.messages.stream(messages=messages, **asked) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(messages=messages, **asked)
        if message.stop_reason != "tool_use":
            break
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "rainy"}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    assert text_of(message) == "It is rainy."
    assert len(messages) == 3


def test_tool_runner(client: anthropic.Anthropic) -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"rainy in {city}"

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, messages=USER, tools=[get_weather]
    )
    assert text_of(runner.until_done()) == "It is rainy."


def test_structured_output(client: anthropic.Anthropic) -> None:
    # MSG-14
    class City(BaseModel):
        city: str

    parsed = client.messages.parse(model=MODEL, max_tokens=500, messages=USER, output_format=City)
    assert parsed.parsed_output == City(city="Oslo")


def test_models(client: anthropic.Anthropic, server: Server) -> None:
    # MSG-21
    page = client.models.list()
    [model] = page.data
    assert (model.id, model.display_name, model.type) == (MODEL, MODEL, "model")
    assert model.lifecycle == "active"
    assert model.created_at.tzinfo is not None
    assert (page.has_more, page.first_id, page.last_id) == (False, MODEL, MODEL)
    assert [each.id for each in client.models.list(limit=1)] == [MODEL]
    assert client.models.retrieve(MODEL).to_dict() == model.to_dict()
    assert server.openai.models.retrieve(MODEL).object == "model"
    plain = server.http.get("/v1/models").json()
    asked = server.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert plain.items() <= {**asked, "data": plain["data"]}.items()
    assert plain["data"][0].keys() <= asked["data"][0].keys()
    assert "type" not in plain["data"][0]


def test_errors(server: Server) -> None:
    # MSG-19 MSG-20
    known = [
        Key("ann", digest_of("a" * 32), requests_per_minute=1),
        Key("bob", digest_of("b" * 32), models=("other",)),
    ]
    asked: Any = {"model": MODEL, "max_tokens": 5, "messages": USER}
    config = scripted_config(server={"auth": "required"})
    keys = KeyStore(Path("none"), known)
    with serve(config, plugins_with(scripted=scripted(["ok"])), keys=keys) as guarded:
        with sdk(guarded) as client, pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(**asked)
        assert refused.value.request_id is not None
        with sdk(guarded, "a" * 32) as client:
            assert text_of(client.messages.create(**asked)) == "ok"
            with pytest.raises(anthropic.RateLimitError):
                client.messages.create(**asked)
        http = anthropic.DefaultHttpxClient(verify=NO_TLS)
        with (
            anthropic.Anthropic(
                base_url=guarded.url, auth_token="b" * 32, max_retries=0, http_client=http
            ) as client,
            pytest.raises(anthropic.NotFoundError),
        ):
            client.messages.create(**asked)
    with sdk(server) as client:
        with pytest.raises(anthropic.NotFoundError, match="gone"):
            client.messages.create(**{**asked, "model": "gone"})
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            client.messages.create(**{**asked, "messages": []})


def test_an_error_in_mid_stream() -> None:
    # MSG-24
    class Failing(ScriptedEngine):
        def step(self) -> Any:
            if any(choice.token_ids for choice in self._choices):
                raise RuntimeError("it broke")
            return super().step()

    plugins = plugins_with(scripted=engine_backend(lambda: Failing(["a", "b"])))
    with (
        serve(scripted_config(), plugins) as server,
        sdk(server) as client,
        client.messages.stream(model=MODEL, max_tokens=9, messages=USER) as stream,
        pytest.raises(anthropic.APIStatusError),
    ):
        stream.get_final_message()


def test_a_real_model() -> None:
    config = scripted_config(backend="hf", path=str(DEMO_MODEL))
    asked: Any = {"model": MODEL, "max_tokens": 12, "messages": USER}
    asked["extra_body"] = {"temperature": 0}
    with serve(config, plugins_with()) as server, sdk(server) as client:
        first = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            second = stream.get_final_message()
        counted = client.messages.count_tokens(model=MODEL, messages=USER).input_tokens
        warmed = client.messages.create(**{**asked, "max_tokens": 0})
    assert text_of(first) == text_of(second) != ""
    for usage in (first.usage, second.usage, warmed.usage):  # MSG-4 MSG-5
        assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert second.usage.cache_read_input_tokens
    assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")


@pytest.fixture
def langchain(server: Server) -> ChatAnthropic:
    return ChatAnthropic(
        model_name=MODEL,
        base_url=server.url,
        api_key="none",
        max_retries=0,
        max_tokens_to_sample=500,
        timeout=60,
        stop=None,
    )


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rainy in {city}"


def test_langchain(langchain: ChatAnthropic) -> None:
    asked = [SystemMessage("Be brief."), HumanMessage("Where is it?")]
    answer = langchain.invoke(asked)
    assert answer.text == '{"city": "Oslo"}'
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None
    total: Any = None
    for chunk in langchain.stream(asked):
        total = chunk if total is None else total + chunk
    assert total.text == answer.text
    assert total.usage_metadata["total_tokens"] == answer.usage_metadata["total_tokens"]


def test_langchain_with_tools(langchain: ChatAnthropic) -> None:
    with_tools = langchain.bind_tools([get_weather])
    asked: list[Any] = [HumanMessage("What is the weather in Oslo?")]
    called: Any = None
    for chunk in with_tools.stream(asked):
        called = chunk if called is None else called + chunk
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert with_tools.invoke([*asked, called, result]).text == "It is rainy."


def test_langchain_structured_output(langchain: ChatAnthropic) -> None:
    class Place(BaseModel):
        """A place."""

        city: str

    for method in ("json_schema", "function_calling"):
        found = langchain.with_structured_output(Place, method=method).invoke("Where?")
        assert isinstance(found, Place)
        json.dumps(found.model_dump())
