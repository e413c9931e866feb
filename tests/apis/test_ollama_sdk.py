"""Ollama's own Python client, and LangChain's, against this server."""

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import ollama
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

from tests.apis.ollama_support import WEATHER, ollama_server, user
from tests.media.samples import PNG
from tests.pooling import Embeds
from tests.support import NO_TLS, Server, engine_backend, plugins_with, scripted_config, serve


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ollama_server(engine={"media": ("image",)}) as running:
        yield running


@pytest.fixture(scope="module")
def embedding() -> Iterator[Server]:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(Embeds))) as running:
        yield running


@contextmanager
def client(server: Server) -> Iterator[ollama.Client]:
    made = ollama.Client(server.url, verify=NO_TLS)
    try:
        yield made
    finally:
        made._client.close()


@asynccontextmanager
async def async_client(server: Server) -> AsyncIterator[ollama.AsyncClient]:
    made = ollama.AsyncClient(server.url, verify=NO_TLS)
    try:
        yield made
    finally:
        await made._client.aclose()


def test_chat(server: Server) -> None:
    # OLL-1 OLL-4
    with client(server) as sdk:
        answer = sdk.chat("scripted", messages=user("hi"), options={"num_predict": 5})
        assert answer.message.role == "assistant"
        assert answer.message.content == "Hello"
        assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 5)
        assert answer.total_duration
        assert answer.total_duration > 0
        thought = sdk.chat("scripted", messages=user("think"), think=True)
        assert (thought.message.thinking, thought.message.content) == ("Let me see.", "Four.")
        parts = list(sdk.chat("scripted", messages=user("think"), stream=True))
        assert "".join(part.message.thinking or "" for part in parts) == "Let me see."
        assert "".join(part.message.content or "" for part in parts) == "Four."
        assert [part.done for part in parts][-2:] == [False, True]
        short = sdk.chat("scripted", messages=user("think"), think=False)
        assert short.message.thinking is None
        probable = sdk.chat("scripted", messages=user("hi"), logprobs=True, top_logprobs=1)
        assert probable.logprobs
        assert [each.token for each in probable.logprobs] == list("Hello, world")


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: which one
    """
    return f"sunny in {city}"


def test_tools(server: Server) -> None:
    # OLL-5 OLL-11
    with client(server) as sdk:
        messages: list[Any] = user("call")
        answer = sdk.chat("scripted", messages=messages, tools=[get_weather])
        assert answer.message.tool_calls
        [call] = answer.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Oslo"})
        result = get_weather(**call.function.arguments)
        messages += [
            answer.message,
            {"role": "tool", "tool_name": "get_weather", "content": result},
        ]
        assert sdk.chat("scripted", messages=messages, tools=[get_weather]).message.content == (
            "It is sunny."
        )
        calls = [
            call
            for part in sdk.chat(
                "scripted", messages=user("call twice"), tools=[WEATHER], stream=True
            )
            for call in part.message.tool_calls or ()
        ]
        assert [call.function.name for call in calls] == ["get_weather"] * 2


class City(BaseModel):
    city: str


def test_format(server: Server) -> None:
    # OLL-7
    with client(server) as sdk:
        schema = City.model_json_schema()
        answer = sdk.chat("scripted", messages=user("hi"), format=schema)
        assert City.model_validate_json(answer.message.content or "")
        streamed = sdk.generate("scripted", "hi", format=schema, stream=True)
        assert City.model_validate_json("".join(part.response or "" for part in streamed))
        assert sdk.generate("scripted", "hi", format="json").response


def test_generate(server: Server) -> None:
    # OLL-9 OLL-10
    with client(server) as sdk:
        answer = sdk.generate("scripted", "prompt", system="Be kind.")
        assert answer.response == "<system>Be kind.\n<user>prompt\n<assistant>"
        assert sdk.generate("scripted", "prompt", raw=True).response == "prompt"
        loaded = sdk.generate("scripted")
        assert (loaded.done_reason, loaded.response) == ("load", "")
        parts = list(sdk.generate("scripted", stream=True))
        assert [part.done_reason for part in parts] == ["load"]
        plain = sdk.generate("scripted", "hi").prompt_eval_count or 0
        for picture in (PNG, base64.b64encode(PNG).decode()):
            seen = sdk.generate("scripted", "hi", images=[picture])
            assert (seen.prompt_eval_count or 0) > plain


def test_models(server: Server) -> None:
    # OLL-13 OLL-17 OLL-20
    with client(server) as sdk:
        [listed] = sdk.list().models
        assert listed.model == "scripted"
        assert listed.modified_at
        shown = sdk.show("scripted")
        assert shown.modelinfo
        family = shown.modelinfo["general.architecture"]
        assert shown.modelinfo[f"{family}.context_length"] == 4096
        assert shown.capabilities == ["completion", "tools", "thinking", "vision"]
        [running] = sdk.ps().models
        assert (running.model, running.context_length) == ("scripted", 4096)
        assert running.expires_at
        assert sdk.pull("scripted").status == "success"
        statuses = [part.status for part in sdk.pull("scripted", stream=True)]
        assert statuses == ["pulling manifest", "success"]


def test_errors(server: Server) -> None:
    # OLL-6 OLL-15
    with client(server) as sdk:
        with pytest.raises(ollama.ResponseError, match="model 'x' not found") as caught:
            sdk.chat("x", messages=user("hi"))
        assert caught.value.status_code == 404
        for refused in (
            lambda: sdk.delete("scripted"),
            lambda: sdk.copy("scripted", "other"),
            lambda: sdk.push("scripted"),
            lambda: sdk.create("other", from_="scripted"),
            lambda: sdk.pull("x"),
            lambda: sdk.show("x"),
        ):
            with pytest.raises(ollama.ResponseError) as caught:
                refused()
            assert caught.value.status_code == 404
            assert isinstance(caught.value.error, str)
        with pytest.raises(ollama.ResponseError, match="does not support embeddings"):
            sdk.embed("scripted", "x")
        with pytest.raises(ollama.ResponseError, match="the engine broke"):
            list(sdk.chat("scripted", messages=user("fail"), stream=True))


async def test_async(server: Server) -> None:
    async with async_client(server) as sdk:
        stream = await sdk.chat("scripted", messages=user("think"), stream=True)
        parts = [part async for part in stream]
        assert "".join(part.message.content or "" for part in parts) == "Four."
        assert parts[-1].done_reason == "stop"
        answer = await sdk.generate("scripted", "hi")
        assert answer.response == "Hello, world"


def test_embeddings(embedding: Server) -> None:
    # OLL-16
    with client(embedding) as sdk:
        one = sdk.embed("scripted", "aab")
        many = sdk.embed("scripted", ["aab", "c"])
        assert (
            many.embeddings[0] == one.embeddings[0] == pytest.approx([0.894, 0.447, 0, 0], abs=1e-3)
        )
        assert many.embeddings[1] == [0, 0, 1, 0]
        assert (one.prompt_eval_count, many.prompt_eval_count) == (5, 8)
        assert one.total_duration
        assert one.load_duration
        assert one.total_duration >= one.load_duration > 0
        assert sdk.embed("scripted", "a" * 100).prompt_eval_count == 16
        with pytest.raises(ollama.ResponseError, match="maximum context length") as caught:
            sdk.embed("scripted", "a" * 100, truncate=False)
        assert caught.value.status_code == 400
        assert sdk.embeddings("scripted", "c").embedding == [0, 0, 1, 0]
        assert sdk.embed("scripted", "").embeddings == []
        assert sdk.embed("scripted", []).embeddings == []
        assert sdk.embeddings("scripted", "").embedding == []
        assert sdk.show("scripted").capabilities == ["embedding"]
    options = {"num_ctx": 3, "foo": 1, "temperature": 1}
    body = {"model": "scripted", "input": "a", "options": options, "surprise": 1}
    answer = embedding.http.post("/api/embed", json=body)
    named = answer.headers["x-unsupported-params"].split(", ")
    assert sorted(named) == ["options.foo", "options.temperature", "surprise"]
    for wrong in ({"dimensions": 2}, {"dimensions": 0}, {"input": [1]}, {"input": "!"}):
        sent = {"model": "scripted", "input": "a", **wrong}
        refused = embedding.http.post("/api/embed", json=sent)
        assert refused.status_code == 400
        assert isinstance(refused.json()["error"], str)
    refused = embedding.http.post("/api/embeddings", json={"model": "scripted", "prompt": "!"})
    assert "not finite" in refused.json()["error"]
    refused = embedding.http.post("/api/chat", json={"model": "scripted", "messages": user("hi")})
    assert "does not generate text" in refused.json()["error"]


@pytest.fixture
def langchain(server: Server) -> Iterator[Callable[..., Any]]:
    """`langchain(ChatOllama)` makes one for the server; it is closed, as LangChain does not."""
    with ExitStack() as stack:

        def make(kind: Any, at: Server = server, **fields: Any) -> Any:
            more = {"client_kwargs": {"verify": NO_TLS}, "base_url": at.url, **fields}
            made = kind(model="scripted", **more)
            stack.callback(made._client._client.close)
            return made

        yield make


def test_langchain(langchain: Callable[..., Any]) -> None:
    model = langchain(ChatOllama)
    answer = model.invoke("hi")
    assert answer.content == "Hello, world"
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == len("Hello, world") + 1
    assert "".join(str(part.content) for part in model.stream("hi")) == "Hello, world"
    thinking = langchain(ChatOllama, reasoning=True)
    thought = thinking.invoke("think")
    assert thought.content == "Four."
    assert thought.additional_kwargs["reasoning_content"] == "Let me see."
    asked = HumanMessage("call")
    with_tools = model.bind_tools([WEATHER])
    called = with_tools.invoke([asked])
    assert isinstance(called, AIMessage)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    result = ToolMessage("sunny", tool_call_id=call["id"])
    assert with_tools.invoke([asked, called, result]).content == "It is sunny."
    structured = model.with_structured_output(City, method="json_schema")
    assert isinstance(structured.invoke("hi"), City)
    assert langchain(OllamaLLM).invoke("hi") == "Hello, world"


def test_langchain_embeds(embedding: Server, langchain: Callable[..., Any]) -> None:
    embeddings = langchain(OllamaEmbeddings, embedding)
    assert embeddings.embed_query("c") == [0, 0, 1, 0]
    assert len(embeddings.embed_documents(["a", "b"])) == 2
