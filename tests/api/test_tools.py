"""Which requests have tool calls, and how many."""

import logging
from typing import Any

import pytest

from enginebay.contract.formats import Parser, Schemas, ToolFormat
from tests.conftest import ServeScripted
from tests.support import plugins_with, scripted, scripted_config, serve

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
CALLS = "".join(
    f'<tool_call>{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}</tool_call>\n'
    for city in ("Oslo", "Rome")
)


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_one_call_where_no_more_are_wanted(serve_scripted: ServeScripted, size: int) -> None:
    # VLLM-6
    pieces = [CALLS[at : at + size] for at in range(0, len(CALLS), size)]
    server = serve_scripted(pieces, tools="hermes", engine={"constraints": False})
    for wanted, count in ((None, 2), (True, 2), (False, 1)):
        body = {"messages": USER, "tools": TOOLS, "parallel_tool_calls": wanted}
        answer = server.http.post(CHAT, json=body)
        choice = answer.json()["choices"][0]
        assert len(choice["message"]["tool_calls"]) == count
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "tool_calls"
        assert "x-unsupported-params" not in answer.headers
        streamed = server.http.post(CHAT, json={**body, "stream": True}).text
        assert ("Rome" in streamed) == (count == 2)
        assert '"finish_reason":"tool_calls"' in streamed


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": "auto"}, True),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"tools": []}, False),
        ({"tool_choice": "auto"}, False),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, False),
    ],
)
def test_when_calls_are_calls(
    serve_scripted: ServeScripted, fields: dict[str, Any], called: bool
) -> None:
    # VLLM-81 VLLM-90 VLLM-92 VLLM-93
    server = serve_scripted([CALLS], tools="hermes")
    choice = server.http.post(CHAT, json={"messages": USER, **fields}).json()["choices"][0]
    assert ("tool_calls" in choice["message"]) == called
    assert choice["finish_reason"] == ("tool_calls" if called else "stop")
    assert choice["message"]["content"] == (None if called else CALLS)


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({}, True),
        ({"tools": []}, True),
        ({"tool_choice": "auto"}, True),
        ({"tools": TOOLS}, True),
        ({"tool_choice": "none"}, False),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"guided_regex": "(?s:.*)"}, False),
    ],
)
def test_calls_without_tools_in_the_request(
    serve_scripted: ServeScripted, fields: dict[str, Any], called: bool
) -> None:
    # FIX-9 TAB-53
    server = serve_scripted([*CALLS], tools="hermes", parse_calls="always")
    body = {"messages": USER, **fields}
    choice = server.http.post(CHAT, json=body).json()["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    assert [call["function"]["arguments"] for call in calls] == (
        ['{"city": "Oslo"}', '{"city": "Rome"}'] if called else []
    )
    assert choice["message"]["content"] == (None if called else CALLS)
    assert choice["finish_reason"] == ("tool_calls" if called else "stop")
    streamed = server.http.post(CHAT, json={**body, "stream": True}).text
    assert ('"tool_calls":[' in streamed) == called


def test_a_model_without_a_format(serve_scripted: ServeScripted) -> None:
    # VLLM-15
    server = serve_scripted([CALLS], tools="none")
    body = {"messages": USER, "tools": TOOLS, "tool_choice": "auto"}
    choice = server.http.post(CHAT, json=body).json()["choices"][0]
    assert choice["message"]["content"] == CALLS
    assert choice["finish_reason"] == "stop"


def test_calls_are_counted_in_the_log(
    serve_scripted: ServeScripted, caplog: pytest.LogCaptureFixture
) -> None:
    # TAB-52 FIX-13 LF-32
    caplog.set_level(logging.INFO, "enginebay")
    server = serve_scripted([CALLS], tools="hermes")
    headers = {"X-Request-Id": "mine"}
    server.http.post(CHAT, json={"messages": USER, "tools": TOOLS, "n": 2}, headers=headers)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "chatcmpl-mine" in text
    assert "completion tokens, 4 tool calls in the format hermes, finished" in text


@pytest.mark.parametrize("stream", [False, True])
def test_a_parser_that_cannot_be_made(stream: bool) -> None:
    # VLLM-80
    plugins = plugins_with(scripted=scripted(["ok"]))

    class Broken(ToolFormat):
        spans = ()

        def matches(self, template: str) -> bool:
            return False

        def parser(self, schemas: Schemas | None = None) -> Parser:
            raise RuntimeError("no parser today")

    plugins.tools("broken", Broken())
    with serve(scripted_config(tools="broken"), plugins) as server:
        body = {"messages": USER, "tools": TOOLS, "stream": stream}
        response = server.http.post(CHAT, json=body)
        assert response.status_code == 500
        assert "server's log" in response.json()["error"]["message"]
        assert server.http.post(CHAT, json={"messages": USER}).status_code == 200
