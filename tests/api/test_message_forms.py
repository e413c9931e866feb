"""Messages, tools and their parts as other APIs have them: taken, named, or refused."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ServeScripted
from tests.support import Server, plugins_with, scripted, scripted_config, serve

CHAT = "/v1/chat/completions"
USER: Any = [{"role": "user", "content": "hi"}]
PNG = "iVBORw0KGgo="
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# Reads every message's role, content, thought, mood and calls, with one unknown key of these.
TEMPLATE = (
    "{% if functions and not tools %}{{ functions | tojson }}{% endif %}"
    "{% for t in tools or [] %}{{ t.function.name }}{{ t.function.category }};{% endfor %}"
    "{% for m in messages %}[{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }}|{{ m.mood }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{{ c.get('note') }}{% endfor %}]{% endfor %}"
)
# Writes messages and tools as they are, whatever their keys.
WHOLE = "{{ messages | tojson }}{{ tools | tojson }}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Its answers are the prompts."""
    plugins = plugins_with(scripted=scripted(lambda prompt, _: [prompt], chat_template=TEMPLATE))
    with serve(scripted_config(tools="none", reasoning="none"), plugins) as running:
        yield running


def prompt_of(server: Server, body: dict[str, Any], named: str | None = None) -> str:
    answer = server.http.post(CHAT, json={"messages": USER, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-unsupported-params") == named
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def history(message: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*USER, {"role": "assistant", **message}, *USER]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_url", f"data:image/png;base64,{PNG}"),
        ("image_url", {"url": "http://x/y.png"}),
        ("audio", {"data": PNG, "format": "wav"}),
        ("video", "http://x/y.mp4"),
        ("videos", ["http://x/y.mp4"]),
        ("files", [{"name": "x"}]),
        ("input_audio", {"data": PNG}),
    ],
)
def test_media_beside_the_content(server: Server, key: str, value: Any) -> None:
    # FIX-1, TAB-33
    body = {"messages": [*USER, {"role": "assistant", "content": "x"}, {**USER[0], key: value}]}
    for path in (CHAT, f"{CHAT}/explain", "/v1/tokenize"):
        answer = server.http.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, f"messages[2].{key}")
        assert f"`{key}` of the message is not read" in error["message"]
    answer = server.http.post("/v1/token/encode", json={"text": body["messages"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"text[2].{key}")
    for empty in (None, [], "", {}):
        prompt_of(server, {"messages": [{**USER[0], key: empty}]})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": [{**USER[0], "attachments": [1]}]}, "messages[0].attachments"),
        ({"messages": [{**USER[0], "id": 0}]}, "messages[0].id"),
        (history({"content": "x", "refusal": "no"}), "messages[1].refusal"),
        (history({"content": "x", "refusal": None, "annotations": [], "audio": None}), None),
        (history({"content": "x", "reasoning": "a", "thinking": "a", "reasoning_content": "a"}),
         None),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a",
         "cache_control": {"type": "ephemeral"}}]}]}, "messages[0].content[0].cache_control"),
        (history({"tool_calls": [{**CALL, "index": 0, "extra": 1}]}),
         "messages[1].tool_calls[0].extra"),
        (history({"tool_calls": [{**CALL, "function": {**CALL["function"], "x": 1}}]}),
         "messages[1].tool_calls[0].function.x"),
        ({"tools": [{"type": "function", "function": FUNCTION, "cost": 1}]}, "tools[0].cost"),
        ({"tools": [{"function": {**FUNCTION, "returns": {"a": 1}}}]}, "tools[0].function.returns"),
        ({"tools": [{"function": {**FUNCTION, "x": 1}}], "tool_choice": "none"}, None),
        ({"functions": [{**FUNCTION, "returns": "x"}]}, "functions[0].returns"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream_options": {"include_obfuscation": False}}, None),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ],
)  # fmt: skip
def test_unknown_keys_inside_are_named(
    server: Server, serve_scripted: ServeScripted, body: dict[str, Any], named: str | None
) -> None:
    # FIX-2
    prompt_of(server, body, named)
    explained = server.http.post(f"{CHAT}/explain", json={"messages": USER, **body}).json()
    assert explained["ignored"] == ([named] if named else [])
    strict = serve_scripted(
        ["ok"], engine={"chat_template": TEMPLATE}, server={"strict_params": True}
    )
    answer = strict.http.post(CHAT, json={"messages": USER, **body})
    assert answer.status_code == (400 if named else 200)
    assert not named or answer.json()["error"]["param"] == named


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"messages": [{**USER[0], "mood": "glad"}]}, "[user:|hi|glad]"),
        (history({"tool_calls": [{**CALL, "note": "so", "index": 3}]}), "f{}so]"),
        ({"tools": [{"function": {**FUNCTION, "category": "sea"}}]}, "fsea;"),
    ],
)
def test_keys_that_the_template_reads(server: Server, body: dict[str, Any], shown: str) -> None:
    # FIX-2
    assert shown in prompt_of(server, body)


def test_keys_of_what_the_template_writes_whole(serve_scripted: ServeScripted) -> None:
    # FIX-2
    server = serve_scripted(
        lambda prompt, _: [prompt], engine={"chat_template": WHOLE}, tools="none"
    )
    tool = {"function": {**FUNCTION, "category": "sea"}, "cost": 7}
    prompt = prompt_of(server, {"messages": [{**USER[0], "mood": "glad"}], "tools": [tool]})
    for word in ('"mood": "glad"', '"category": "sea"', '"cost": 7'):
        assert word in prompt
    call = {**CALL, "index": 0, "extra": 1}  # would otherwise change what the model was taught
    prompt = prompt_of(server, history({"tool_calls": [call]}), "messages[1].tool_calls[0].extra")
    assert "index" not in prompt
    assert "extra" not in prompt


def test_keys_that_a_requests_own_template_reads(serve_scripted: ServeScripted) -> None:
    # FIX-2
    server = serve_scripted(
        lambda prompt, _: [prompt], server={"allow_request_template": True}, reasoning="none"
    )
    body = {"messages": [{**USER[0], "mood": "glad", "other": 1}], "chat_template": TEMPLATE}
    assert prompt_of(server, body, "messages[0].other") == "[user:|hi|glad]"


def test_many_unknown_keys(server: Server) -> None:
    """Of each key the first is named, and a header has its limits."""
    messages = [{**USER[0], "id": f"m{i}", f"key{i}": 1} for i in range(300)]
    answer = server.http.post(CHAT, json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200
    header = answer.headers["x-unsupported-params"]
    assert header.startswith("messages[0].id, messages[0].key0, messages[1].key1, ")
    assert re.search(r", messages\[(\d+)\]\.key\1, \.\.\.$", header)
    assert len(header) <= 4005


@pytest.mark.parametrize(
    ("fields", "forced", "named"),
    [
        ({"enable_thinking": False}, {"enable_thinking": True}, "enable_thinking"),
        ({"thinking": False}, {"enable_thinking": True}, "thinking"),
        ({"think": False}, {"enable_thinking": True}, "think"),
        ({"reasoning_effort": "none"}, {"enable_thinking": True}, "reasoning_effort"),
        ({"think": "high"}, {"reasoning_effort": "low"}, "think"),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "low"}, "reasoning_effort"),
        ({"template_vars": {"mood": "glad"}}, {"mood": "sad"}, "template_vars.mood"),
        ({"enable_thinking": True}, {"enable_thinking": True}, None),
        ({"reasoning_effort": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}, None),
        ({"template_vars": {"mood": "sad"}}, {"mood": "sad"}, None),
        ({}, {"enable_thinking": True, "mood": "sad"}, None),
        ({"enable_thinking": False}, {"not_read": True}, None),
    ],
)
def test_variables_that_the_config_forces(
    serve_scripted: ServeScripted, fields: Any, forced: Any, named: str | None
) -> None:
    # FIX-4
    engine = {"chat_template": "{{ enable_thinking }}{{ reasoning_effort }}{{ mood }}x"}
    model = {"engine": engine, "force_template_vars": forced, "reasoning": "none"}
    prompt_of(serve_scripted(["ok"], **model), fields, named)
    strict = serve_scripted(["ok"], server={"strict_params": True}, **model)
    answer = strict.http.post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == (400 if named else 200)
    assert not named or answer.json()["error"]["param"] == named


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"think": False}, "False|"),
        ({"think": True}, "True|"),
        ({"think": "low"}, "True|low"),
        ({"think": False, "enable_thinking": True}, "True|"),
        ({"think": "low", "reasoning_effort": "high"}, "True|high"),
        ({"think": "low", "reasoning": {"effort": "high"}}, "True|low"),
        ({"think": False, "reasoning": {"enabled": True}}, "False|"),
        ({"thinking": False, "reasoning": {"enabled": True}}, "False|"),
    ],
)
def test_think_of_ollama(serve_scripted: ServeScripted, fields: Any, read: str) -> None:
    # FIX-5
    engine = {"chat_template": "{{ enable_thinking }}|{{ reasoning_effort }}"}
    server = serve_scripted(lambda prompt, _: [prompt], engine=engine, reasoning="none")
    assert prompt_of(server, fields) == read


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"messages": [{"content": "hi"}]}, "[user:|hi|]"),
        ({"messages": [{"content": [{"text": "hi"}]}]}, "[user:|hi|]"),
        ({"messages": [{"content": [{"type": "input_text", "text": "hi"}]}]}, "[user:|hi|]"),
        ({"tools": [{"function": FUNCTION}]}, "f;[user:|hi|]"),
        ({"functions": [{"anything": ["goes"]}]}, '[{"anything": ["goes"]}][user:|hi|]'),
        ({"functions": [{"a": 1}], "tools": [{"function": FUNCTION}]}, "f;[user:|hi|]"),
        ({"functions": [{"a": 1}, FUNCTION]}, f'[{{"a": 1}}, {json.dumps(FUNCTION)}][user:|hi|]'),
    ],
)  # fmt: skip
def test_forms_of_tabbyapi(server: Server, body: dict[str, Any], prompt: str) -> None:
    # FIX-6
    assert prompt_of(server, body) == prompt


def test_a_choice_without_a_type(serve_scripted: ServeScripted) -> None:
    # FIX-2 FIX-6
    said = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    server = serve_scripted([said], tools="hermes")
    tools = [{"function": FUNCTION}]
    for extra, named in (({}, None), ({"x": 1}, "tool_choice.x")):
        choice = {"function": {"name": "f"}, **extra}
        body = {"messages": USER, "tools": tools, "tool_choice": choice}
        answer = server.http.post(CHAT, json=body)
        [call] = answer.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "f"
        assert answer.headers.get("x-unsupported-params") == named


def test_functions_that_the_template_does_not_read(serve_scripted: ServeScripted) -> None:
    # FIX-6
    prompt_of(serve_scripted(["ok"]), {"functions": [{"anything": 1}]}, "functions")


def test_stops_that_are_tokens(serve_scripted: ServeScripted) -> None:
    # FIX-6
    server = serve_scripted(["a", "b", "c", "d"])
    for stop, content, reason in (
        (["x", ord("c")], "ab", ord("c")),
        ([ord("z"), "b"], "a", "b"),
        ([ord("b")], "a", ord("b")),
    ):
        for name in ("stop", "stop_sequence"):
            answer = server.http.post(CHAT, json={"messages": USER, name: stop})
            assert "x-unsupported-params" not in answer.headers
            [choice] = answer.json()["choices"]
            assert (choice["message"]["content"], choice["stop_reason"]) == (content, reason)
    body = {"messages": USER, "stop": ["x", 5], "stop_token_ids": [7]}
    stops = server.http.post(f"{CHAT}/explain", json=body).json()["stop"]
    assert stops == {"strings": ["x"], "token_ids": [7, 5]}


def test_logprobs_as_a_number(serve_scripted: ServeScripted) -> None:
    # FIX-6
    server = serve_scripted(["a"])
    for fields, top in (
        ({"logprobs": 3}, 3),
        ({"logprobs": 3, "top_logprobs": 1}, 1),
        ({"logprobs": 0}, None),
        ({"logprobs": True}, 0),
    ):
        body = {"messages": USER, **fields}
        answer = server.http.post(f"{CHAT}/explain", json=body).json()
        assert answer["sampling"]["logprobs"]["value"] == top


def test_json_is_any_object(serve_scripted: ServeScripted) -> None:
    # FIX-6
    server = serve_scripted(["{}"])
    constraints = [
        server.http.post(
            f"{CHAT}/explain", json={"messages": USER, "response_format": {"type": kind}}
        ).json()["constraint"]
        for kind in ("json", "json_object")
    ]
    assert constraints[0] == constraints[1]
    assert constraints[0]


@pytest.mark.parametrize(
    ("parts", "prompt"),
    [
        ([{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "a"}],
         "[assistant:hm|a|]"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"text": "m"}]},
          {"type": "output_text", "text": "a"}], "[assistant:hm|a|]"),
        ([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "a"}],
         "[assistant:hm|a|]"),
        ([{"type": "reasoning", "text": "hm"}, {"text": "a"}], "[assistant:hm|a|]"),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
          {"type": "refusal", "refusal": "no"}], "[assistant:hm|no|]"),
        ([{"type": "reasoning", "content": [{"text": "hm"}], "summary": []}], "[assistant:hm||]"),
        ([{"type": "thinking"}, {"type": "input_text", "text": "a"}], "[assistant:|a|]"),
        ([{"type": "thinking", "thinking": [3, {"text": None}, {}]}, {"text": "a"}],
         "[assistant:|a|]"),
    ],
)  # fmt: skip
def test_parts_of_the_assistants_content(server: Server, parts: Any, prompt: str) -> None:
    # FIX-17
    body = history({"content": parts})
    assert prompt_of(server, body) == f"[user:|hi|]{prompt}[user:|hi|]"
    explained = server.http.post(f"{CHAT}/explain", json=body).json()
    assert explained["prompt"] == f"[user:|hi|]{prompt}[user:|hi|]"


def test_thought_beside_and_inside_the_content(server: Server) -> None:
    # FIX-17
    parts = [{"type": "thinking", "thinking": "b"}, {"type": "text", "text": "c"}]
    body = history({"thinking": "a", "content": parts, "tool_calls": [CALL]})
    assert "[assistant:ab|c|f{}" in prompt_of(server, body)


def test_echoed_parts(server: Server) -> None:
    # FIX-17
    parts = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a"}]
    body = {"messages": [{"role": "assistant", "content": parts}], "echo": True}
    assert prompt_of(server, body) == "a[assistant:hm|a|]"


@pytest.mark.parametrize("kind", ["thinking", "reasoning"])
def test_thought_of_others_is_refused(server: Server, kind: str) -> None:
    # FIX-17
    body = {"messages": [{"role": "user", "content": [{"type": kind, kind: "x"}]}]}
    answer = server.http.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].type"
    assert "messages of the assistant" in answer.json()["error"]["message"]
