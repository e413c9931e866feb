"""What reaches the backend, seen by a plugin that watches; and backends that behave oddly."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from enginebay import Backend, Delta, GenerationRequest, hookimpl
from enginebay.server.app import create_app
from enginebay.testing import ScriptedEngine
from tests.support import (
    InlineBackend,
    Server,
    engine_backend,
    plugins_with,
    scripted,
    scripted_config,
    serve,
)

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
PROMPT = "<user>hi\n<assistant>"


class Watcher:
    """A plugin that sees every request."""

    def __init__(self) -> None:
        self.seen: list[GenerationRequest] = []

    @hookimpl(wrapper=True)
    def generate(self, backend: Backend, request: GenerationRequest) -> Any:
        self.seen.append(request)
        return (yield)


@contextmanager
def watched(engine: ScriptedEngine, **model: Any) -> Iterator[tuple[Server, Watcher]]:
    watcher = Watcher()
    plugins = plugins_with(scripted=engine_backend(lambda: engine))
    plugins._manager.register(watcher)
    with serve(scripted_config(**model), plugins) as server:
        yield server, watcher


def test_all_choices_are_one_request() -> None:
    # TAB-49 TAB-73 TAB-80 TAB-81 VLLM-28 VLLM-37
    with watched(ScriptedEngine(["ok"])) as (server, watcher):
        body = {"messages": USER, "n": 3, "max_tokens": 7, "stop": ["."], "priority": 2}
        server.http.post(CHAT, json=body, headers={"X-Request-Id": "mine"})
    [request] = watcher.seen
    assert request.request_id.startswith("chatcmpl-mine-")
    assert "".join(map(chr, request.prompt_token_ids)) == PROMPT
    assert (request.n, request.priority) == (3, 2)
    assert (request.sampling.max_tokens, request.sampling.stop) == (7, (".",))


def test_the_models_defaults_count_under_the_requests_values() -> None:
    # VLLM-32
    engine = ScriptedEngine(["ok"])
    engine.info = replace(
        engine.info, defaults={"temperature": 0.6, "top_p": 0.9}, unsupported=frozenset()
    )
    with watched(engine, sampling={"top_p": 0.8}) as (server, watcher):
        server.http.post(CHAT, json={"messages": USER})
        server.http.post(CHAT, json={"messages": USER, "temperature": 0.1, "top_p": 0.2})
    chosen = [(each.sampling.temperature, each.sampling.top_p) for each in watcher.seen]
    assert chosen == [(0.6, 0.8), (0.1, 0.2)]


def test_without_max_tokens_the_context_is_the_limit() -> None:
    # VLLM-29
    endless = ScriptedEngine(lambda prompt, index: iter(lambda: "a", ""), context_length=64)
    with watched(endless) as (server, _):
        answer = server.http.post(CHAT, json={"messages": USER}).json()
    assert answer["usage"]["total_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", ["use_beam_search", "logits_processors", "debug_config"])
def test_what_no_engine_does_is_named(field: str) -> None:
    # MLC-6 VLLM-30 VLLM-31
    with watched(ScriptedEngine(["ok"])) as (server, _):
        answer = server.http.post(CHAT, json={"messages": USER, field: {"x": 1}})
        assert answer.status_code == 200
        assert answer.headers["x-unsupported-params"] == field


class Talkative(InlineBackend):
    """Says more after it has finished, and never counts its prompt."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="ok", token_ids=(1, 2), finish_reason="length")
        yield Delta(text=" and more", token_ids=(3, 4, 5))
        yield Delta(finish_reason="stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_ends_at_its_first_finish(stream: bool) -> None:
    # TAB-17 TAB-74 VLLM-47 VLLM-70
    plugins = plugins_with(scripted=lambda settings: Talkative(ScriptedEngine([])))
    with serve(scripted_config(), plugins) as server:
        body = {"messages": USER, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        response = server.http.post(CHAT, json=body)
    if stream:
        events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
        choices = [choice for event in events for choice in event["choices"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        usage = events[-1]["usage"]
    else:
        answer = response.json()
        text = answer["choices"][0]["message"]["content"]
        reasons = [answer["choices"][0]["finish_reason"]]
        usage = answer["usage"]
    assert (text, reasons) == ("ok", ["length"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), 2)


async def left(messages: Sequence[dict[str, Any]], stream: bool) -> list[dict[str, Any]]:
    """What the app sends to a client that closes the connection right after its request."""
    plugins = plugins_with(scripted=scripted(lambda prompt, index: iter(lambda: "", "x")))
    app = create_app(scripted_config(), plugins)
    await app.state.services.models.load_at_start()
    body = json.dumps({"messages": messages, "stream": stream}).encode()
    incoming = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(incoming)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""}
    try:
        async with asyncio.timeout(60):
            await app(scope, receive, send)  # type: ignore[arg-type]
    finally:
        await app.state.services.models.close()
    return sent


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_left_gets_no_answer(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # MLC-21 TAB-85 VLLM-82
    start, *rest = await left(USER, stream)
    assert start["status"] == 499
    assert not any(message.get("body") for message in rest)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_two_apps_in_one_process() -> None:
    # MLC-4
    with (
        serve(scripted_config(name="one"), plugins_with(scripted=scripted(["1"]))) as first,
        serve(scripted_config(name="two"), plugins_with(scripted=scripted(["2"]))) as second,
    ):
        for server, name, text in ((first, "one", "1"), (second, "two", "2")):
            answer = server.http.post(CHAT, json={"model": name, "messages": USER}).json()
            assert answer["choices"][0]["message"]["content"] == text
        assert first.http.post(CHAT, json={"model": "two", "messages": USER}).status_code == 404


def test_headers_of_traces_are_no_matter() -> None:
    # VLLM-34
    with watched(ScriptedEngine(["ok"])) as (server, watcher):
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        assert server.http.post(CHAT, json={"messages": USER}, headers=headers).status_code == 200
    assert "0af7651916cd43dd" not in repr(watcher.seen)


def test_adapters_are_tokenized_by_their_model() -> None:
    # VLLM-11
    engine = ScriptedEngine(["ok"])
    engine.info = replace(engine.info, adapters=("pirate",))
    with watched(engine) as (server, watcher):
        for model in ("scripted", "pirate"):
            server.http.post(CHAT, json={"model": model, "messages": USER})
    base, adapted = watcher.seen
    assert (base.adapter, adapted.adapter) == (None, "pirate")
    assert base.prompt_token_ids == adapted.prompt_token_ids


HERMES = {"<tool_call>", "</tool_call>"}
THINK = {"<think>", "</think>"}


@pytest.mark.parametrize(
    ("tools", "reasoning", "offers", "kept"),
    [
        ("hermes", "think", True, HERMES | THINK),
        ("hermes", "think", False, THINK),
        ("hermes", "none", True, HERMES),
        ("none", "none", True, set()),
    ],
)
def test_parsers_get_the_tokens_that_their_formats_are_made_of(
    tools: str, reasoning: str, offers: bool, kept: set[str]
) -> None:
    # VLLM-25, REAL-5
    engine = ScriptedEngine(["ok"])
    tool = {"type": "function", "function": {"name": "f"}}
    offered = {"tools": [tool]} if offers else {}
    with watched(engine, tools=tools, reasoning=reasoning) as (server, watcher):
        for skip in ({}, {"skip_special_tokens": False}):
            answer = server.http.post(CHAT, json={"messages": USER, **offered, **skip})
            assert "x-unsupported-params" not in answer.headers
    skips, shows = (request.sampling for request in watcher.seen)
    assert (skips.skip_special_tokens, shows.skip_special_tokens) == (True, False)
    assert kept == {tag for tag in HERMES | THINK if any(tag in t for t in skips.format_marks)}
    assert shows.format_marks == ()


def test_completions_have_no_format() -> None:
    # REAL-5
    with watched(ScriptedEngine(["ok"]), tools="hermes", reasoning="think") as (server, watcher):
        server.http.post("/v1/completions", json={"prompt": "a"})
    assert watcher.seen[0].sampling.skip_special_tokens
    assert watcher.seen[0].sampling.format_marks == ()


class Prefilling(InlineBackend):
    """Tells how far its prompt is before it says anything."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(prefill_tokens=10)
        yield Delta(prefill_tokens=9)
        async for delta in super().generate(request):
            yield replace(delta, prefill_tokens=0)


def test_nothing_is_sent_of_what_says_nothing() -> None:  # LF-27
    # TAB-25 VLLM-49
    plugins = plugins_with(scripted=lambda settings: Prefilling(ScriptedEngine(["o", "", "k"])))
    with serve(scripted_config(), plugins) as server:
        text = server.http.post(CHAT, json={"messages": USER, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "o"}, {"content": "k"}, {}]
