"""The chat way, against a second Enginebay: what its clients get is what comes through here."""

import base64
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import serving
from enginebay_remote import create
from enginebay_remote.options import Options
from PIL import Image

from enginebay import (
    Backend,
    BackendSettings,
    Chat,
    ContentDelta,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ReasoningDelta,
    ToolCallDelta,
)
from enginebay.testing import check_backend

# It thinks, and calls tools if it is shown any; what it says for ever it tells of when it is ended.
PLUGIN = """
import itertools
import socket
from contextlib import aclosing

from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl

CALL = '<tool_call>\\n{"name": "weather", "arguments": {"city": "%s"}}\\n</tool_call>'
THOUGHT = ["<think>", "Hm", "\\u2028", ".", "</think>"]


def say(prompt, index):
    if "<tools>" in prompt:
        return [*THOUGHT, "Let me see.", *(CALL % "Oslo"), "\\n", CALL % "Bergen"]
    if "\\ufffc" in prompt:
        return [f"{prompt.count(chr(0xfffc))} tokens of a picture"]
    if "for ever" in prompt:
        return itertools.repeat("on ")
    return [*THOUGHT, "Hel", "lo, ", "wor", "ld"]


@hookimpl
def register_backends(register):
    engine = lambda: ScriptedEngine(say, context_length=300_000, media=["image"])
    register("talker", lambda settings: EngineBackend(engine))


@hookimpl(wrapper=True)
def generate(backend, request):
    stream = yield
    endless = "for ever" in "".join(map(chr, request.prompt_token_ids))
    return watched(stream) if endless else stream


async def watched(stream):
    finished = False
    try:
        async with aclosing(stream):
            async for delta in stream:
                finished = bool(delta.finish_reason)
                yield delta
    finally:
        if not finished:
            socket.create_connection(("127.0.0.1", PORT)).close()
"""
CONFIG = """
server: {port: 0, api_keys: [secret]}
models:
  - {name: talker, backend: talker, path: ., reasoning: think, tools: hermes}
"""
USER = [{"role": "user", "content": "What is the weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
PATH = "/chat/completions"


@pytest.fixture(scope="module")
def ended() -> Iterator[socket.socket]:
    """The upstream server reports that it ended an endless answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, ended: socket.socket) -> Iterator[str]:
    """The server that has the model."""
    plugin = PLUGIN.replace("PORT", str(ended.getsockname()[1]))
    with serving(tmp_path_factory.mktemp("far"), CONFIG, {"talker": plugin}) as url:
        yield url


@pytest.fixture(scope="module")
def near(far: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The one in front of it."""
    entry = {"name": "far", "backend": "remote", "path": far, "options": {"api_key": "secret"}}
    config = json.dumps({"server": {"port": 0}, "models": [entry]})
    with serving(tmp_path_factory.mktemp("near"), config, {}) as url:
        yield url


def ask(url: str, body: dict[str, Any]) -> httpx2.Response:
    """The answer of a server."""
    headers = {"Authorization": "Bearer secret"}
    return httpx2.post(url + PATH, json={"messages": USER, **body}, headers=headers, timeout=60)


def chunks(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The chunks of a streamed one."""
    lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def joined(answer: httpx2.Response) -> dict[str, Any]:
    """What a stream comes to: texts by their fields, calls, the end, the usage."""
    texts: dict[str, str] = {}
    calls: dict[int, list[str]] = {}
    end, usage = None, {}
    for chunk in chunks(answer):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            end = choice["finish_reason"] or end
            for name, value in choice["delta"].items():
                if isinstance(value, str) and name != "role":
                    texts[name] = texts.get(name, "") + value
            for call in choice["delta"].get("tool_calls", ()):
                names = calls.setdefault(call["index"], ["", ""])
                names[0] += call["function"].get("name", "")
                names[1] += call["function"]["arguments"]
    return {"texts": texts, "calls": calls, "end": end, "usage": counts(usage)}


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Usage without the times."""
    return {name: value for name, value in usage.items() if name != "extra"}


BODIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "one tool": {"tools": TOOLS, "parallel_tool_calls": False},
    "forced": {"tools": TOOLS, "tool_choice": "required"},
    "named": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    },
    "none": {"tools": TOOLS, "tool_choice": "none"},
    "short": {"max_tokens": 20},
    "stopped": {"stop": ["wor"]},
    "held to a schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": PARAMETERS},
        }
    },
    "held to texts": {"guided_choice": ["red", "green"]},
    "with a budget": {"reasoning_budget": 1},
    "with logprobs": {"logprobs": True, "top_logprobs": 1},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_streams_are_those_of_the_server_behind(near: str, far: str, body: dict[str, Any]) -> None:
    """Reasoning, content, calls, the end and usage, cut where the upstream server cut them."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    mine, theirs = ask(near, asked), ask(far, asked)
    assert (mine.status_code, theirs.status_code) == (200, 200), (mine.text, theirs.text)
    assert joined(mine) == joined(theirs)
    assert "x-unsupported-params" not in mine.headers


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_whole_answers_are_those_of_the_server_behind(
    near: str, far: str, body: dict[str, Any]
) -> None:
    """The messages but for the ids of calls, which are the server's own each time."""
    mine, theirs = (ask(url, {**body, "n": 2}).json() for url in (near, far))
    for answer in (mine, theirs):
        for choice in answer["choices"]:
            for call in choice["message"].get("tool_calls", ()):
                assert call.pop("id").startswith("call_")
    assert mine["choices"] == theirs["choices"]
    assert counts(mine["usage"]) == counts(theirs["usage"])


def test_reasoning_and_calls_arrive_apart(near: str) -> None:
    """Lest the two be equal in that they have none."""
    answer = joined(ask(near, {"tools": TOOLS, "stream": True}))
    assert answer["texts"]["reasoning_content"] == "Hm\u2028."
    assert answer["texts"]["content"].strip() == "Let me see."
    assert [name for name, _ in answer["calls"].values()] == ["weather", "weather"]
    cities = [json.loads(arguments)["city"] for _, arguments in answer["calls"].values()]
    assert cities == ["Oslo", "Bergen"]
    assert answer["end"] == "tool_calls"


def test_calls_arrive_as_they_form(near: str) -> None:
    """In more pieces than there are calls."""
    stream = chunks(ask(near, {"tools": TOOLS, "stream": True}))
    deltas = [choice["delta"] for chunk in stream for choice in chunk["choices"]]
    assert sum("tool_calls" in delta for delta in deltas) > 2


def test_a_client_that_leaves_ends_the_answer_on_the_server_behind(
    near: str, ended: socket.socket
) -> None:
    """Through both servers, down to the engine."""
    body = {"messages": [{"role": "user", "content": "Go on for ever"}], "stream": True}
    with httpx2.stream("POST", near + PATH, json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        while "on " not in next(lines):
            pass
    told, _ = ended.accept()
    told.close()


@pytest.mark.parametrize("n", [1, 2])
def test_the_prompt_of_a_client_that_leaves_is_counted(
    near: str, ended: socket.socket, n: int
) -> None:
    """In the usage that limits of keys go by, once; of a whole answer once as well."""

    def counted() -> int:
        days = httpx2.get(f"{near}/usage", timeout=60).json()["data"]
        return sum(day["prompt_tokens"] for day in days)

    before = counted()
    body = {"messages": [{"role": "user", "content": "Go on for ever"}], "n": n}
    whole = ask(near, {**body, "max_tokens": 4}).json()["usage"]
    assert counted() == before + whole["prompt_tokens"] > before
    with httpx2.stream("POST", near + PATH, json={**body, "stream": True}, timeout=60) as answer:
        seen, lines = set[int](), answer.iter_lines()
        while len(seen) < n:
            if "on " in (line := next(lines)):
                seen.add(json.loads(line.removeprefix("data: "))["choices"][0]["index"])
    ended.accept()[0].close()
    while counted() < before + 2 * whole["prompt_tokens"]:
        pass
    assert counted() == before + 2 * whole["prompt_tokens"]


def test_errors_of_the_server_behind(near: str) -> None:
    """What is the client's to mend is a 400 that says so, by the name that the client used."""
    for body, param in (
        ({"messages": [{"role": "user", "content": "a" * 300_000}]}, "messages"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
    ):
        answer = ask(near, body)
        assert answer.status_code == 400, answer.text
        if param:
            assert answer.json()["error"]["param"] == param


def test_media(near: str, far: str) -> None:
    """A picture arrives, in its several spellings; kinds that the model does not take are refused
    here, by the part's path. What the model takes is what the server behind says of it.
    """
    [card] = httpx2.get(f"{near}/models", timeout=60).json()["data"]
    assert card["architecture"]["input_modalities"] == ["text", "image"]
    data = io.BytesIO()
    Image.new("RGB", (256, 256), "red").save(data, "PNG")
    encoded = base64.b64encode(data.getvalue()).decode()
    url = f"data:image/png;base64,{encoded}"
    for part in (
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
    ):
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]}
        mine, theirs = ask(near, body).json(), ask(far, body).json()
        assert mine["choices"] == theirs["choices"]
        assert mine["choices"][0]["message"]["content"] == "5 tokens of a picture"
    ollama = {"messages": [{"role": "user", "content": "?", "images": [encoded]}]}
    assert "5 tokens" in ask(near, ollama).json()["choices"][0]["message"]["content"]
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    refused = ask(near, {"messages": [{"role": "user", "content": [sound]}]})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_modality", "messages[0].content[0]")
    cut = {"type": "image_url", "image_url": {"url": url[:200]}}
    broken = ask(near, {"messages": [{"role": "user", "content": [cut]}]})
    assert broken.status_code == 400
    assert broken.json()["error"]["param"] == "messages[0].content[0]"


def test_what_the_engine_behind_lacks_is_named(near: str) -> None:
    """Which was found out at start."""
    answer = ask(near, {"temperature": 0.5, "seed": 3, "enable_thinking": False})
    assert answer.status_code == 200
    assert answer.headers["x-unsupported-params"] == "seed, temperature"


def test_prompts_are_refused(near: str) -> None:
    """There is nobody who could tokenize them."""
    answer = httpx2.post(f"{near}/completions", json={"prompt": "Hi"}, timeout=60)
    assert answer.status_code == 400
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


def backend(url: str, **options: object) -> Backend:
    """A backend for that server."""
    values = Options.model_validate({"api_key": "secret", "retries": 0, **options})
    return create(BackendSettings(name="m", path=url, options=values))


async def test_keeps_the_promises(far: str) -> None:
    """All that a backend of chats promises."""
    await check_backend(lambda: backend(far))


async def test_keeps_the_promises_with_a_model(demo: tuple[str, Path]) -> None:
    """The demo model on the other server: every sampling param it honours has its effect here."""
    await check_backend(lambda: backend(demo[0]), prompt="Tell me a story")


async def test_parts(far: str) -> None:
    """What the backend itself gives: parts, no text and no tokens, usage on the last delta.

    The first one has the prompt's already: what is counted of an answer that is cut off.
    """
    chat = Chat(messages=({"role": "user", "content": "Hi"},), tools=tuple(TOOLS))
    request = GenerationRequest(request_id="r", prompt_token_ids=(), chat=chat)
    remote = backend(far)
    info = await remote.start()
    try:
        deltas = [delta async for delta in remote.generate(request)]
        with pytest.raises(InvalidRequestError):
            await anext(remote.generate(replace(request, chat=None)))
    finally:
        await remote.close()
    assert (info.chats, info.context_length) == (True, 300_000)
    assert {"temperature", "prompt_logprobs"} <= info.unsupported
    assert not info.unsupported & {"stop", "tools", "response_format", "structured_outputs"}
    kinds = {type(part) for delta in deltas for part in delta.parts}
    assert kinds == {ReasoningDelta, ContentDelta, ToolCallDelta}
    assert not any(delta.text or delta.token_ids for delta in deltas)
    last: Delta = deltas[-1]
    assert last.finish_reason == "stop"
    assert last.usage
    assert last.usage.reasoning_tokens
    assert last.usage.prompt_tokens > 2
    early = deltas[0].usage
    assert early
    assert early.prompt_tokens == last.usage.prompt_tokens
    assert 0 < early.completion_tokens < last.usage.completion_tokens
    assert [delta.usage for delta in deltas[1:-1]] == [None] * (len(deltas) - 2)
