"""Tools of `/v1/messages`: which may and must be called, and the form of the answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apis.messages_stream import MESSAGES, USER, ask
from tests.support import Server, plugins_with, scripted, scripted_config, serve

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [{"name": "f", "input_schema": SCHEMA}, {"name": "g", "input_schema": SCHEMA}]
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {{"n": {n}}}}}\n</tool_call>'
    for n, name in enumerate("fg")
)


@pytest.fixture(scope="module")
def calling() -> Iterator[Server]:
    """Wants to call both tools, and is held to what is allowed."""
    plugins = plugins_with(scripted=scripted([CALLS]))
    with serve(scripted_config(tools="hermes", reasoning="think"), plugins) as server:
        yield server


@pytest.fixture(scope="module")
def chatting() -> Iterator[Server]:
    """Wants to say something else, and is held to what is asked for."""
    plugins = plugins_with(scripted=scripted(["Hello"]))
    with serve(scripted_config(tools="hermes", reasoning="think"), plugins) as server:
        yield server


def called(message: dict[str, Any]) -> list[str]:
    blocks = message["content"]
    return [block["name"] for block in blocks if block["type"] == "tool_use"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["f", "g"]),
        ({"type": "auto"}, ["f", "g"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["f"]),
        ({"type": "any"}, ["f", "g"]),
        ({"type": "any", "disable_parallel_tool_use": True}, ["f"]),
        ({"type": "tool", "name": "f"}, ["f"]),
        ({"type": "none"}, []),
    ],
)
def test_what_is_called(calling: Server, choice: Any, names: list[str]) -> None:
    # MSG-8 MSG-9
    message = ask(calling, tools=TOOLS, tool_choice=choice)
    assert called(message) == names
    assert message["stop_reason"] == ("tool_use" if names else "end_turn")


@pytest.mark.parametrize(
    "choice", [{"type": "any"}, {"type": "tool", "name": "g"}, {"type": "auto"}, {"type": "none"}]
)
def test_what_must_be_called(chatting: Server, choice: dict[str, Any]) -> None:
    # MSG-8 MSG-9
    message = ask(chatting, tools=TOOLS, tool_choice=choice, max_tokens=500)
    forced = choice["type"] in ("any", "tool")
    assert bool(called(message)) == forced
    if not forced:
        assert message["content"] == [{"type": "text", "text": "Hello"}]
        return
    [block] = message["content"]
    assert isinstance(block["input"]["n"], int)
    assert message["stop_reason"] == "tool_use"
    assert choice["type"] == "any" or block["name"] == "g"


def test_hosted_tools_are_named_and_the_others_callable(calling: Server) -> None:
    # MSG-23
    tools = [SEARCH, *TOOLS, {"type": "bash_20250124", "name": "bash"}]
    body = {"model": "scripted", "max_tokens": 500, "messages": USER, "tools": tools}
    response = calling.http.post(MESSAGES, json=body)
    assert response.headers["x-unsupported-params"] == "tools[0], tools[3]"
    assert called(response.json()) == ["f", "g"]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    assert called(ask(calling, tools=tools, tool_choice=choice)) == ["f"]
    assert ask(calling, tools=[SEARCH])["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {"tools": [SEARCH, *TOOLS], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice: this server has no tool of the type 'web_search_20250305'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "h"}},
            "tool_choice: there is no tool named 'h'",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [SEARCH, {"input_schema": {}}]}, "tools[1].name"),
        (
            {"tools": [SEARCH, *TOOLS, {**TOOLS[0], "input_schema": {}}]},
            "tools[3].name: two different functions are named 'f'",
        ),
        (
            {
                "tools": [SEARCH, {"name": "f", "input_schema": {"type": "array"}}],
                "tool_choice": {"type": "any"},
            },
            "tools[1].input_schema: ",
        ),
    ],
)
def test_wrong_tools(calling: Server, fields: dict[str, Any], message: str) -> None:
    body = {"model": "scripted", "max_tokens": 500, "messages": USER, **fields}
    for stream in (False, True):
        response = calling.http.post(MESSAGES, json={**body, "stream": stream})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_the_form_is_enforced(chatting: Server, place: str) -> None:
    # MSG-14
    form = {"type": "json_schema", "schema": {**SCHEMA, "additionalProperties": False}}
    fields = {place: {"format": form} if place == "output_config" else form}
    message = ask(chatting, max_tokens=500, **fields)
    assert isinstance(json.loads(message["content"][0]["text"])["n"], int)
    bad = json.loads(json.dumps(fields).replace("integer", "nonsense"))
    body = {"model": "scripted", "max_tokens": 500, "messages": USER, **bad}
    error = chatting.http.post(MESSAGES, json=body).json()["error"]
    where = f"{place}.format" if place == "output_config" else place
    assert error["message"].startswith(f"{where}.schema")


def test_a_budget_is_enforced() -> None:
    # MSG-13
    said = scripted(["<think>", "x" * 300, "</think>", "Hello"])
    with serve(scripted_config(reasoning="think"), plugins_with(scripted=said)) as server:
        thought, text = ask(server, thinking={"type": "enabled", "budget_tokens": 40})["content"]
    assert 0 < len(thought["thinking"]) <= 40
    assert text["text"] == "Hello"
