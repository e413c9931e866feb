"""What requests of Ollama's API ask for."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from enginebay.testing.scripted import CHAT_TEMPLATE
from tests.apis.ollama_support import (
    CHAT,
    GENERATE,
    UNSUPPORTED,
    WEATHER,
    answered,
    ask,
    lines,
    ollama_server,
    refused,
    user,
)
from tests.media.samples import PNG
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ollama_server(engine={"context_length": 2000}) as running:
        yield running


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    with ollama_server(engine={"media": ("image",)}) as running:
        yield running


def prompt_of(server: Server, messages: list[dict[str, Any]], **fields: Any) -> str:
    """What the model gets of these messages and the wish to be told the prompt."""
    body = {"model": "scripted", "messages": [*messages, *user("prompt")], "stream": False}
    return str(answered(server.http.post(CHAT, json={**body, **fields}))["message"]["content"])


def call(name: str, id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {**({"id": id} if id else {}), "function": {"name": name, "arguments": arguments}}


def calls(*called: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(called)}


def result(content: str, **fields: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **fields}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [calls(call("a"), call("b")), result("of b", tool_name="b"), result("of a")],
            "<tool>of a[for 000000000]\n<tool>of b[for 000000001]\n",
        ),
        (
            [calls(call("a"), call("a")), result("one", tool_name="a"), result("two")],
            "<tool>one[for 000000000]\n<tool>two[for 000000001]\n",
        ),
        (
            [
                calls(call("a", "x"), call("b", "y")),
                result("of y", tool_call_id="y"),
                result("of x", tool_name="nobody"),
            ],
            "<tool>of x[for x]\n<tool>of y[for y]\n",
        ),
        (
            [calls(call("a", "000000000"), call("b")), result("one"), result("two")],
            "<tool>one[for 000000000]\n<tool>two[for 000000001]\n",
        ),
        (
            [calls(call("a")), result("one"), calls(call("a")), result("two", tool_name="a")],
            "[000000001=a{}]\n<tool>two[for 000000001]\n",
        ),
    ],
    ids=["by name", "in order", "by id", "an id is taken", "of the last calls"],
)
def test_results_find_their_calls(server: Server, messages: list[Any], expected: str) -> None:
    # OLL-11
    assert expected in prompt_of(server, messages)


def test_messages_as_they_are(server: Server) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        *user("hi"),
        {"role": "assistant", "content": "Hey", "thinking": "Who is it?"},
        calls({"function": {"index": 0, "name": "f", "arguments": {"x": [1, {"y": None}]}}}),
        result("3", tool_name="f"),
    ]
    body = {"model": "scripted", "messages": [*messages, *user("prompt")], "stream": False}
    answer = server.http.post(CHAT, json=body)
    assert UNSUPPORTED not in answer.headers
    assert answer.json()["message"]["content"] == (
        "<system>Be kind.\n<user>hi\n<assistant>(Who is it?)Hey\n"
        '<assistant>[000000000=f{"x": [1, {"y": null}]}]\n<tool>3[for 000000000]\n'
        "<user>prompt\n<assistant>"
    )


def test_generate_is_one_question(server: Server) -> None:
    body = {"model": "scripted", "prompt": "prompt", "system": "Be kind.", "stream": False}
    answer = answered(server.http.post(GENERATE, json=body))
    assert answer["response"] == "<system>Be kind.\n<user>prompt\n<assistant>"
    assert "message" not in answer
    streamed = lines(server.http.post(GENERATE, json={**body, "prompt": "think", "stream": None}))
    assert "".join(line.get("thinking", "") for line in streamed) == "Let me see."
    assert "".join(line["response"] for line in streamed) == "Four."


def test_raw_uses_no_template(server: Server) -> None:
    # OLL-10
    body = {"model": "scripted", "prompt": "a prompt", "raw": True, "stream": False}
    answer = server.http.post(GENERATE, json={**body, "system": "x", "think": True})
    assert answer.json()["response"] == "a prompt"
    assert answer.json()["prompt_eval_count"] == len("a prompt")
    assert answer.headers[UNSUPPORTED] == "system, think"
    text = server.http.post(GENERATE, json={**body, "prompt": "think", "think": False}).json()
    assert text["response"] == "<think>Let me see.</think>Four."
    assert refused(server.http.post(GENERATE, json={**body, "images": ["x"]})).startswith("images")


class FillsIn(ScriptedEngine):
    """Has three tokens for it, and says its prompt."""

    _TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if text in self._TOKENS:
            return [0xE000 + self._TOKENS.index(text)]
        return super().tokenize(text, add_special_tokens=add_special_tokens)


def test_a_suffix_is_led_to() -> None:
    create = engine_backend(lambda: FillsIn(lambda prompt, index: [prompt]))
    with serve(scripted_config(), plugins_with(scripted=create)) as server:
        body = {"model": "scripted", "prompt": "def f(", "suffix": "return 1", "stream": False}
        answer = answered(server.http.post(GENERATE, json=body))
        assert answer["response"] == "\ue000def f(\ue001return 1\ue002"
        able = server.http.post("/api/show", json={"model": "scripted"}).json()["capabilities"]
        assert able == ["completion", "insert"]
    with ollama_server() as server:
        error = refused(server.http.post(GENERATE, json=body))
        assert "does not support suffix" in error


def test_format(server: Server) -> None:
    # OLL-7
    for asked, keys in (("json", set()), (SCHEMA, {"city"})):
        message = ask(server, "hi", format=asked)["message"]
        assert keys <= json.loads(message["content"]).keys()
        body = {"model": "scripted", "prompt": "hi", "format": asked}
        for more in ({}, {"raw": True}):
            streamed = lines(server.http.post(GENERATE, json={**body, **more}))
            assert keys <= json.loads("".join(line["response"] for line in streamed)).keys()
    for none in ("", None):
        assert ask(server, "hi", format=none)["message"]["content"] == "Hello, world"
    for wrong in ("xml", 3, ["json"]):
        body = {"model": "scripted", "messages": user("hi"), "format": wrong}
        assert refused(server.http.post(CHAT, json=body)).startswith("format: ")
    impossible = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    body = {"model": "scripted", "messages": user("hi"), "format": impossible}
    error = refused(server.http.post(CHAT, json=body))
    assert "format" in error
    assert "response_format" not in error


@pytest.mark.parametrize("think", [True, "low", "medium", "high", "max", None])
def test_thinking(server: Server, think: object) -> None:
    # OLL-8
    body = {"model": "scripted", "messages": user("think"), "think": think, "stream": False}
    answer = server.http.post(CHAT, json=body)
    assert answer.json()["message"]["thinking"] == "Let me see."
    assert UNSUPPORTED not in answer.headers


def test_no_thinking(server: Server) -> None:
    # OLL-8
    body = {"model": "scripted", "messages": user("think"), "think": False, "stream": False}
    answer = server.http.post(CHAT, json=body)
    assert answer.json()["message"] == {"role": "assistant", "content": "Hello, world"}
    assert UNSUPPORTED not in answer.headers
    assert refused(server.http.post(CHAT, json={**body, "think": "hard"})).startswith("think: ")


def test_thought_is_left_out_where_the_model_cannot_be_kept_from_it() -> None:
    with ollama_server(engine={"chat_template": CHAT_TEMPLATE}) as server:
        for think, named in ((True, "think"), (False, "think"), (None, None)):
            body = {"model": "scripted", "messages": user("think"), "think": think}
            for stream in (False, True):
                answer = server.http.post(CHAT, json={**body, "stream": stream})
                assert answer.status_code == 200
                assert answer.headers.get(UNSUPPORTED) == named
                assert ("Let me see." in answer.text) == (think is not False)


def test_a_model_without_thinking() -> None:
    with ollama_server(reasoning="none", engine={"chat_template": CHAT_TEMPLATE}) as server:
        body = {"model": "scripted", "messages": user("hi"), "think": True, "stream": False}
        answer = server.http.post(CHAT, json=body)
        assert answer.json()["message"]["content"] == "Hello, world"
        assert answer.headers[UNSUPPORTED] == "think"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(server: Server, stream: bool) -> None:
    long = "x" * 3000
    for path, body in (
        (CHAT, {"messages": user(long)}),
        (GENERATE, {"prompt": long}),
        (GENERATE, {"prompt": long, "raw": True}),
    ):
        sent = {"model": "scripted", "stream": stream, **body}
        assert "maximum context length" in refused(server.http.post(path, json=sent))
        answer = server.http.post(path, json={**sent, "truncate": True})
        assert answer.status_code == 200
        assert int(answer.headers["x-truncated-prompt-tokens"]) > 1000


def test_pictures(seeing: Server, server: Server) -> None:
    picture = base64.b64encode(PNG).decode()
    plain = ask(seeing, "hi")["prompt_eval_count"]
    message = {"role": "user", "content": "hi", "images": [picture]}
    body = {"model": "scripted", "messages": [message], "stream": False}
    assert answered(seeing.http.post(CHAT, json=body))["prompt_eval_count"] > plain
    asked = {"model": "scripted", "prompt": "hi", "images": [picture], "stream": False}
    assert answered(seeing.http.post(GENERATE, json=asked))["prompt_eval_count"] > plain
    for path, sent in ((CHAT, body), (GENERATE, asked)):
        assert "image" in refused(server.http.post(path, json=sent))
    for wrong in ("no picture", "", 3, {}):
        broken = {**body, "messages": [{**message, "images": [picture, wrong]}]}
        assert refused(seeing.http.post(CHAT, json=broken))
        assert refused(seeing.http.post(GENERATE, json={**asked, "images": [wrong]}))


def test_tools_are_offered(server: Server) -> None:
    assert '"name": "get_weather"' in prompt_of(server, [], tools=[WEATHER])
    for none in ([], None):
        assert "<tools>" not in prompt_of(server, [], tools=none)
    body = {"model": "scripted", "messages": user("hi"), "tools": [{"type": "function"}]}
    assert refused(server.http.post(CHAT, json=body)).startswith("tools[0].function")


def test_latest_is_understood(server: Server) -> None:
    # OLL-14
    for model in ("scripted", "scripted:latest"):
        answer = answered(
            server.http.post(CHAT, json={"model": model, "messages": user("hi"), "stream": False})
        )
        assert answer["model"] == model
    with ollama_server(name="x:latest", aliases=["gpt"]) as other:
        for model in ("x:latest", "gpt", "gpt:latest"):
            assert other.http.post("/api/show", json={"model": model}).status_code == 200


@pytest.mark.parametrize(
    "path", [CHAT, GENERATE, "/api/show", "/api/embed", "/api/embeddings", "/api/pull"]
)
def test_models_that_there_are_not(server: Server, path: str) -> None:
    # OLL-15 OLL-6
    assert refused(server.http.post(path, json={})) == "model is required"
    for model in ("llama3.2", "scripted:8b", "nobody:latest"):
        error = refused(server.http.post(path, json={"model": model}), 404)
        assert error.startswith(f"model {model!r} not found; available: scripted")
