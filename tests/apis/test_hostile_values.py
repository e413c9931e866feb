"""Values that are legal JSON and more than what handles them can take."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from tests.apis.ollama_support import CHAT, TEMPLATE, WEATHER, lines, user
from tests.support import Server, engine_backend, plugins_with, scripted, scripted_config, serve

TOO_DEEP_TO_WRITE = 300
"""Levels, more than pydantic writes and fewer than JSON's reader takes."""
TOO_DEEP_TO_WALK = 900
"""More than a function that calls itself can go down."""


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def tools(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    """A server whose model takes pictures."""
    backend = scripted("Hello", media=("image",))
    with serve(scripted_config(), plugins_with(scripted=backend)) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {}),
        ("/apply-template", {}),
        ("/tokenize", {}),
        ("/api/chat", {"stream": False}),
    ],
)
def test_tools_nested_too_deeply_for_a_model_that_sees(
    seeing: Server, path: str, more: dict[str, Any]
) -> None:
    body = {"model": "scripted", "messages": user("hi"), "tools": tools(nested(TOO_DEEP_TO_WALK))}
    response = seeing.http.post(path, json=body | more)
    assert response.status_code == 400, response.text
    assert "nested too deeply" in response.text


@pytest.mark.parametrize("value", [nested(TOO_DEEP_TO_WRITE), {"\ufffd": 1}])
def test_capture_takes_whatever_a_request_has(tmp_path: Path, value: dict[str, Any]) -> None:
    config = scripted_config(server={"capture": str(tmp_path)})
    with serve(config, plugins_with(scripted=scripted("Hello"))) as server:
        body = {"model": "scripted", "prompt": "hi", "nobody_knows": value}
        response = server.http.post("/v1/completions", content=json.dumps(body))
        assert response.status_code == 200, response.text
        assert response.headers["x-unsupported-params"] == "nobody_knows"
    captured = [json.loads(file.read_text().splitlines()[0]) for file in tmp_path.iterdir()]
    assert [each["request"]["body"]["nobody_knows"] for each in captured] == [value]


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_nested_too_deeply_is_left_out(stream: bool) -> None:
    arguments = json.dumps(nested(TOO_DEEP_TO_WRITE))
    call = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'

    def create() -> ScriptedEngine:
        return ScriptedEngine([f"So: {call}"], chat_template=TEMPLATE, constraints=False)

    config = scripted_config(tools="hermes", server={})
    with serve(config, plugins_with(scripted=engine_backend(create))) as server:
        body = {"model": "scripted", "messages": user("hi"), "tools": [WEATHER], "stream": stream}
        response = server.http.post(CHAT, json=body)
        told = lines(response) if stream else [response.json()]
    assert "".join(line["message"]["content"] for line in told).strip() == "So:"
    assert not any("tool_calls" in line["message"] for line in told)
    assert told[-1]["done_reason"] == "stop"
