"""What the items and tools of `/v1/responses` come to in the prompt, and whose calls are whose."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay.testing import ScriptedChat
from tests.apis.response_events import (
    PATH,
    WEATHER,
    Saying,
    call,
    error_of,
    say,
    saying,
    text_of,
)
from tests.media.samples import PNG
from tests.support import engine_backend, plugins_with, scripted_config, serve

CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "4 degrees"}
WRITTEN = '[call c1 weather {"city": "Oslo"}]'


@pytest.fixture(scope="module")
def at() -> Iterator[Saying]:
    with saying(engine={"media": ["image"]}) as server:
        yield server


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}


@pytest.mark.parametrize(
    ("items", "prompt"),
    [
        ("hi", "<user>hi\n"),
        ([user("hi")], "<user>hi\n"),
        ([{"role": "developer", "content": "be"}, user("hi")], "<system>be\n<user>hi\n"),
        ([user("a"), assistant("b"), user("c")], "<user>a\n<assistant>b\n<user>c\n"),
        ([user("a"), assistant("b"), assistant("c")], "<user>a\n<assistant>b\n<assistant>c\n"),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, user("c")],
            "<assistant>No.\n<user>c\n",
        ),
        (
            [user("a"), thought("t"), CALL, OUTPUT],
            f"<user>a\n<assistant>[thought t]{WRITTEN}\n<tool>4 degrees[of c1]\n",
        ),
        (
            [user("a"), thought("t"), assistant("b"), CALL, OUTPUT, thought("u"), assistant("d")],
            f"<user>a\n<assistant>[thought t]b{WRITTEN}\n<tool>4 degrees[of c1]\n"
            "<assistant>[thought u]d\n",
        ),
        (  # one answer that thinks between its calls
            [thought("t"), CALL, thought("u"), {**CALL, "call_id": "c2"}, OUTPUT],
            f"<assistant>[thought t\n\nu]{WRITTEN}{WRITTEN.replace('c1', 'c2')}\n"
            "<tool>4 degrees[of c1]\n",
        ),
        (
            [CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "warm"}]}],
            f"<assistant>{WRITTEN}\n<tool>warm[of c1]\n",
        ),
        (
            [{**CALL, "namespace": "gone", "arguments": {"city": "Oslo"}}, OUTPUT],
            f"<assistant>{WRITTEN}\n<tool>4 degrees[of c1]\n",
        ),
        (
            [
                {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"\n'},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
            ],
            '<assistant>[call c patch {"input": "a \\"b\\"\\n"}]\n<tool>ok[of c]\n',
        ),
    ],
)
def test_items(at: Saying, items: Any, prompt: str) -> None:
    response = at.post(items)
    assert response.status_code == 200, response.text
    assert at.prompt.removesuffix("<assistant>") == prompt
    assert "x-unsupported-params" not in response.headers


def test_instructions_come_first(at: Saying) -> None:
    at.whole("hi", instructions="Be kind.")
    assert at.prompt == "<system>Be kind.\n<user>hi\n<assistant>"


def test_pictures(at: Saying) -> None:
    pixel = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    picture = {"type": "input_image", "image_url": pixel, "detail": "auto"}
    content = [{"type": "input_text", "text": "what?"}, picture]
    assert at.post([{"role": "user", "content": content}]).status_code == 200
    with saying() as blind:
        error = error_of(blind.post([user("a"), {"role": "user", "content": content}]))
        assert error["param"] == "input[1].content[1]"
        assert error["code"] == "unsupported_modality"


def test_hosted_items_are_named(at: Saying) -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    response = at.post([{**user("hi"), "made_up": 1}, search])
    assert at.prompt == "<user>hi\n<assistant>"
    assert response.headers["x-unsupported-params"] == "input[0].made_up, input[1]"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "custom", "name": "c", "made_up": 1}]}, "tools[0].made_up"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [WEATHER], "made_up": 1}]},
            "tools[0].made_up",
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "tools": [{"type": "function", "name": "weather", "made_up": 1}],
                },
            },
            "tool_choice.tools[0].made_up",
        ),
        ({"text": {"format": {"type": "text", "made_up": 1}}}, "text.format.made_up"),
        ({"reasoning": {"made_up": 1}, "text": {"made_up": 1}}, "reasoning.made_up, text.made_up"),
        ({"stream_options": {"made_up": 1}}, "stream_options.made_up"),
        ({"stream_options": {"include_obfuscation": True}}, None),
        ({"reasoning": {"context": "auto", "mode": "standard"}}, None),
    ],
)
def test_unknown_keys_of_objects_are_named(
    at: Saying, fields: dict[str, Any], named: str | None
) -> None:
    assert at.post("hi", **fields).headers.get("x-unsupported-params") == named


@pytest.mark.parametrize("stream", [False, True])
def test_hosted_tools_are_named(at: Saying, stream: bool) -> None:
    # RESP-18
    tools = [WEATHER, {"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    response = at.post("hi", tools=tools, stream=stream)
    assert response.status_code == 200
    assert response.headers["x-unsupported-params"] == "tools[1], tools[2]"
    for choice in ({"type": "web_search"}, "required"):
        error = error_of(at.post("hi", tools=tools[1:], tool_choice=choice, stream=stream))
        assert error["param"] == "tool_choice"
    with saying(server={"strict_params": True}) as strict:
        error = error_of(strict.post("hi", tools=tools, stream=stream))
        assert (error["code"], error["param"]) == ("unsupported_parameter", "tools[1]")


CUSTOM = {"type": "custom", "name": "patch", "description": "Takes a patch."}


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("none", []),
        ("auto", ["weather"]),
        ("required", ["weather"]),
        ({"type": "function", "name": "time"}, ["time"]),
        ({"type": "custom", "name": "patch"}, ["patch"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "patch"}],
            },
            ["patch"],
        ),
    ],
)
def test_tool_choice(at: Saying, choice: Any, called: list[str]) -> None:
    # RESP-16
    tools = [WEATHER, {"type": "function", "name": "time"}, CUSTOM]
    answer = at.whole(say(call(city="Oslo")), tools=tools, tool_choice=choice)
    calls = [item["name"] for item in answer["output"] if item["type"].endswith("call")]
    assert calls == called
    assert answer["tool_choice"] == choice


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "nobody"},
        {"type": "function", "name": "patch"},
        {"type": "function"},
        {"type": "custom", "name": "weather"},
        {"type": "image_generation"},
        {"type": "allowed_tools", "tools": [{"type": "function", "name": "nobody"}]},
    ],
)
def test_choices_of_what_is_not_offered(at: Saying, choice: Any) -> None:
    # RESP-16
    assert error_of(at.post("hi", tools=[WEATHER, CUSTOM], tool_choice=choice))["param"] == (
        "tool_choice"
    )


def test_one_call_where_no_more_are_wanted(at: Saying) -> None:
    # RESP-17
    said = say(call(city="Oslo") + "\n" + call(city="Rome"))
    assert len(at.both(said, tools=[WEATHER])["output"]) == 2
    assert len(at.both(said, tools=[WEATHER], parallel_tool_calls=False)["output"]) == 1


def test_namespaces(at: Saying) -> None:
    # RESP-19
    agents = {
        "type": "namespace",
        "name": "agents",
        "tools": [
            {"type": "function", "name": "close", "parameters": {"type": "object"}},
            {"type": "function", "name": "weather", "parameters": {"type": "object"}},
        ],
    }
    tools = [WEATHER, agents]
    answer = at.both(say(call("close")), tools=tools)
    assert "[tools weather close agents__weather]" in at.prompt
    [closing] = answer["output"]
    assert (closing["name"], closing["namespace"]) == ("close", "agents")
    [clashing] = at.both(say(call("agents__weather")), tools=tools)["output"]
    assert (clashing["name"], clashing["namespace"]) == ("weather", "agents")
    items = [user("a"), closing, {**OUTPUT, "call_id": closing["call_id"]}, clashing]
    at.whole([*items, {**OUTPUT, "call_id": clashing["call_id"]}], tools=tools)
    assert f"[call {closing['call_id']} close {{}}]" in at.prompt
    assert f"[call {clashing['call_id']} agents__weather {{}}]" in at.prompt
    named = {"type": "function", "name": "weather", "namespace": "agents"}
    [forced] = at.both(say(call("agents__weather")), tools=tools, tool_choice=named)["output"]
    assert forced["namespace"] == "agents"


def test_custom_tools(at: Saying) -> None:
    # RESP-20
    text = '*** Begin "Patch"\nüber\n'
    answer = at.both(say(*call("patch", input=text)), tools=[CUSTOM])
    [item] = answer["output"]
    assert item == {
        "id": item["id"],
        "type": "custom_tool_call",
        "call_id": item["call_id"],
        "name": "patch",
        "input": text,
    }
    cut = at.both(say(*call("patch", input=text)), tools=[CUSTOM], max_output_tokens=66)
    assert text.startswith(text_of(cut["output"][0]))
    assert cut["status"] == "incomplete"


def test_the_grammar_of_a_custom_tool(at: Saying) -> None:
    # RESP-20
    form = {"type": "grammar", "syntax": "regex", "definition": "(yes|no)"}
    tools = [{**CUSTOM, "format": form}]
    forced = {"type": "custom", "name": "patch"}
    said = say(*call("patch", input="maybe"))
    [item] = at.both(said, tools=tools, tool_choice=forced)["output"]
    assert item["input"] in ("yes", "no")
    assert at.post("hi", tools=[{**CUSTOM, "format": {"type": "text"}}]).status_code == 200
    for wrong in ({"syntax": "lark"}, {"definition": "(?=a)"}, {"definition": "("}):
        error = error_of(at.post("hi", tools=[{**CUSTOM, "format": {**form, **wrong}}]))
        assert error["param"].startswith("tools[0].format")


def test_what_cannot_be_enforced_is_named_where_it_is_sent(at: Saying) -> None:
    odd: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"$ref": "http://elsewhere/x.json"}},
    }
    function = {"type": "function", "name": "f", "parameters": odd}
    tools = [{"type": "web_search"}, function]
    named = at.post("hi", tools=tools).headers["x-unsupported-params"]
    assert named == "tools[0], tools[1].parameters"
    error = error_of(at.post("hi", tools=[{**function, "strict": True}]))
    assert error["param"] == "tools[0].parameters"
    error = error_of(at.post("hi", text={"format": {"type": "json_schema", "schema": odd}}))
    assert error["param"] == "text.format.schema"
    assert error["message"].startswith("text.format.schema")


@pytest.mark.parametrize("stream", [False, True])
def test_how_many_tokens_the_input_has(at: Saying, stream: bool) -> None:
    # RESP-37
    for fields in (
        {},
        {"tools": [WEATHER]},
        {"instructions": "Be kind.", "reasoning": {"effort": "low"}},
    ):
        items = [user("a"), CALL, OUTPUT]
        counted = at.server.http.post(
            f"{PATH}/input_tokens", json={"input": items, "stream": stream, **fields}
        ).json()
        used = at.whole(items, **fields)["usage"]["input_tokens"]
        assert counted == {"object": "response.input_tokens", "input_tokens": used}
    counted = at.server.openai.responses.input_tokens.count(model="scripted", input="hi")
    assert counted.input_tokens == len("<user>hi\n<assistant>")


def test_truncation() -> None:
    # RESP-40
    with saying(engine={"context_length": 200}) as at:
        old = [user("a" * 50), assistant("b" * 50)]
        kept = [user("go"), CALL, OUTPUT]
        items = [{"role": "developer", "content": "Stay."}, *old, *old, *kept]
        error = error_of(at.post(items, instructions="Be."))
        assert error["code"] == "context_length_exceeded"
        response = at.post(items, instructions="Be.", truncation="auto", max_output_tokens=20)
        assert response.status_code == 200
        assert at.prompt == (
            f"<system>Be.\n<system>Stay.\n<user>go\n<assistant>{WRITTEN}\n"
            "<tool>4 degrees[of c1]\n<assistant>"
        )
        gone = int(response.headers["x-dropped-messages"])
        assert gone == 4
        counted = {
            "input": items,
            "instructions": "Be.",
            "truncation": "auto",
            "max_output_tokens": 20,
        }
        assert at.server.http.post(f"{PATH}/input_tokens", json=counted).json()[
            "input_tokens"
        ] == len(at.prompt)
        fits = at.post("hi", truncation="auto")
        assert "x-dropped-messages" not in fits.headers
        error = error_of(at.post([*old, user("x" * 300)], truncation="auto"))
        assert error["code"] == "context_length_exceeded"
        many = [user("go"), *[CALL, OUTPUT] * 10]  # in the middle of an agent's work
        assert at.post(many, truncation="auto", max_output_tokens=20).status_code == 200
        assert at.prompt.startswith("<user>go\n<assistant>[call c1")
        assert at.prompt.endswith("[of c1]\n<assistant>")
        # errors still speak of the places that were sent
        wrong = {"role": "user", "content": [{"type": "made_up"}]}
        error = error_of(at.post([*old, *old, wrong], truncation="auto"))
        assert error["param"] == "input[4].content[0].type"


def test_calls_of_a_model_that_takes_messages() -> None:
    create = engine_backend(lambda: ScriptedChat(["ok"]))
    with serve(scripted_config(), plugins_with(scripted=create)) as server:
        answer = server.http.post(PATH, json={"input": "hi"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "completed"
        error = error_of(server.http.post(f"{PATH}/input_tokens", json={"input": "hi"}))
        assert error["param"] == "model"
        named = server.http.post(PATH, json={"input": "hi", "truncation": "auto"}).headers
        assert "truncation" in named["x-unsupported-params"]
    with serve(
        scripted_config(server={"strict_params": True}), plugins_with(scripted=create)
    ) as server:
        error = error_of(server.http.post(PATH, json={"input": "hi", "truncation": "auto"}))
        assert error["message"] == "unsupported parameters: truncation"


def test_what_codex_sends(at: Saying) -> None:
    """Its body, in its shape and size."""
    spawn = {"type": "function", "name": "spawn", "strict": False, "parameters": {"type": "object"}}
    body = {
        "model": "scripted",
        "instructions": "You are a coding agent. " * 400,
        "input": [
            {
                "type": "message",
                "role": "developer",
                "id": "msg_1",
                "content": [text("rules " * 200)],
            },
            {
                "type": "message",
                "role": "user",
                "id": "msg_2",
                "content": [text(say(call("spawn")))],
            },
        ],
        "tools": [
            *[{**spawn, "name": f"tool_{n}", "description": "d" * 2000} for n in range(8)],
            {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": [spawn]},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "client_metadata": {"x-codex-installation-id": "1"},
    }
    with saying(engine={"context_length": 100_000}) as codex:
        items = body.pop("input")
        events = codex.events(items, **{k: v for k, v in body.items() if k != "stream"})
    assert events[-1]["response"]["output"][0]["namespace"] == "multi_agent_v1"


def text(said: str) -> dict[str, Any]:
    return {"type": "input_text", "text": said}


def test_arguments_are_a_text(at: Saying) -> None:
    # RESP-9
    [item] = at.whole(say(call(city="Oslo")), tools=[WEATHER])["output"]
    assert isinstance(item["arguments"], str)
    assert json.loads(item["arguments"]) == {"city": "Oslo"}
