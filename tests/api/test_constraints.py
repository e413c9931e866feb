"""What requests ask of an answer's form is kept to, or refused with the place that cannot be."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.conftest import ServeScripted
from tests.support import Server

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}
GBNF = 'root ::= "a" [0-9]+ "b"'
LARK = 'start: "a" /[0-9]+/ "b"'


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "hi"}
    return {**prompt, "max_tokens": 200, **fields}


def ask(server: Server, path: str = CHAT, **fields: Any) -> tuple[str, str]:
    """The text of the answer and why it ended, the same streamed and whole."""
    answer = server.http.post(path, json=body(path, **fields))
    assert answer.status_code == 200, answer.text
    assert "x-unsupported-params" not in answer.headers
    choice = answer.json()["choices"][0]
    text = (choice["message"]["content"] if path == CHAT else choice["text"]) or ""
    streamed, reason = "", None
    for line in server.http.post(path, json=body(path, stream=True, **fields)).text.splitlines():
        if line.startswith("data: {"):
            part = json.loads(line.removeprefix("data: "))["choices"][0]
            piece = part["delta"].get("content") if path == CHAT else part["text"]
            streamed, reason = streamed + (piece or ""), part["finish_reason"] or reason
    assert (streamed, reason) == (text, choice["finish_reason"])
    return text, choice["finish_reason"]


def refused(server: Server, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    answer = server.http.post(path, json=body(path, **fields))
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"json_schema": SCHEMA},
        {"json_schema": SCHEMA, "guided_json": SCHEMA, "response_format": {"type": "text"}},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_a_schema(serve_scripted: ServeScripted, path: str, fields: dict[str, Any]) -> None:
    # WEB-31: the script says something else
    server = serve_scripted(["Sure! ", '{"city": "Rom', 'a", "days": 0', "}"])
    text, reason = ask(server, path, **fields)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert reason == "stop"


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
        ({"response_format": {"type": "json_object", "schema": {}}}, r"\{.*\}"),
        ({"structured_outputs": {"json_object": True}}, r"\{.*\}"),
        ({"guided_json_object": True}, r"\{.*\}"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, r".+"),
        ({"guided_regex": r"\d{2}-x"}, r"\d{2}-x"),
        ({"structured_outputs": {"regex": r"^a+$"}}, r"a+"),
        ({"regex_pattern": "[a-c]d"}, "[a-c]d"),
        ({"guided_choice": ["positive", "negative"]}, "positive|negative"),
        ({"structured_outputs": {"choice": ["a.b", "c|d"]}}, r"a\.b|c\|d"),
        ({"guided_grammar": GBNF}, "a[0-9]+b"),
        ({"structured_outputs": {"grammar": LARK}}, "a[0-9]+b"),
        ({"grammar": GBNF}, "a[0-9]+b"),
        ({"grammar_string": GBNF}, "a[0-9]+b"),
        ({"response_format": {"type": "grammar", "grammar": GBNF}}, "a[0-9]+b"),
    ],
)
def test_other_constraints(
    serve_scripted: ServeScripted, path: str, fields: dict[str, Any], expected: str
) -> None:
    text, reason = ask(serve_scripted(["no{w}! "]), path, **fields)
    assert re.fullmatch(expected, text, re.DOTALL), text
    assert reason == "stop"
    if expected in (r"\{.*\}", ".+"):
        json.loads(text)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}, "json_schema": {}, "grammar_string": ""},
        {"guided_json": {}, "guided_regex": "", "guided_choice": []},
        {"guided_json": "{}", "json_schema": " {} ", "structured_outputs": {"json": "{}"}},
        {"structured_outputs": {}, "regex_pattern": "", "guided_json_object": False},
        {"structured_outputs": {"json": {}, "regex": "", "choice": [], "json_object": False}},
        {"response_format": None, "json_schema": None, "grammar": "", "structured_outputs": None},
        {"structured_outputs": {"json": None, "structural_tag": None, "whitespace_pattern": ""}},
    ],
)
def test_what_means_off(serve_scripted: ServeScripted, path: str, fields: dict[str, Any]) -> None:
    server = serve_scripted(["free"], server={"strict_params": True})
    assert ask(server, path, **fields) == ("free", "stop")
    extra = server.http.post(path, json=body(path, **fields)).json()["usage"]["extra"]
    assert not {"grammar_init_s", "grammar_per_token_s"} & extra.keys()


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        ({"response_format": {"type": "grammar"}}, "response_format.grammar", "grammar"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"response_format": "json_object"}, "response_format", "an object"),
        ({"guided_json": "{"}, "guided_json", "JSON text"),
        ({"guided_json": [1]}, "guided_json", "JSON Schema"),
        ({"guided_json": {"type": "objekt"}}, "guided_json", "type"),
        (
            {"guided_json": {"properties": {"a": {"$ref": "#/$defs/b"}}}},
            "guided_json",
            "/properties/a",
        ),
        ({"json_schema": {"not": {}}}, "json_schema", ""),
        ({"guided_regex": "("}, "guided_regex", ""),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look"),
        ({"guided_choice": [5]}, "guided_choice[0]", "string"),
        ({"guided_choice": "yes"}, "guided_choice", "list"),
        ({"grammar_string": 'root ::= "a'}, "grammar_string", ""),  # EVE-7
        ({"grammar_string": 'start: "a" <|no|>'}, "grammar_string", "unknown special token"),
        ({"grammar": "start: nothing"}, "grammar", ""),
        # The engine finds these: it knows the special tokens.
        ({"grammar": 'start: "a" <|no|>'}, "grammar", "unknown special token"),
        (
            {"structured_outputs": {"grammar": "start: <|no|>"}, "stream": True},
            "structured_outputs.grammar",
            "unknown special token",
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", ""),
        ({"structured_outputs": "x"}, "structured_outputs", "an object"),
        (
            {"guided_regex": "a", "json_schema": SCHEMA},
            "guided_regex",
            "json_schema and guided_regex contradict each other",
        ),
    ],
)
def test_refusals(
    serve_scripted: ServeScripted, fields: dict[str, Any], param: str, message: str
) -> None:
    server = serve_scripted(["ok"])
    for path in (CHAT, TEXT):
        sent = json.dumps(body(path, **fields))
        answer = server.http.post(path, content=sent, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert message in error["message"]
    assert ask(server) == ("ok", "stop")


def test_long_checks_hold_up_nobody_else(
    serve_scripted: ServeScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def check(*_: object) -> None:
        assert go_on.wait(60)

    monkeypatch.setattr("enginebay.chat.plan.planner.content_grammar", check)
    server = serve_scripted(["ok"])
    with ThreadPoolExecutor(50) as clients:
        fields = body(TEXT, guided_regex="a")
        waiting = [clients.submit(server.http.post, TEXT, json=fields) for _ in range(50)]
        try:
            assert ask(server) == ("ok", "stop")
        finally:
            go_on.set()
    assert [each.result().status_code for each in waiting] == [200] * 50


def test_an_engine_that_keeps_to_no_grammar(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], engine={"constraints": False})
    for path in (CHAT, TEXT):
        error = refused(server, path, guided_regex="a")
        assert (error["param"], error["code"]) == ("guided_regex", "unsupported_parameter")
        assert ask(server, path, response_format={"type": "text"}) == ("ok", "stop")


def test_settings_that_are_not_understood_are_named(serve_scripted: ServeScripted) -> None:
    format = {"type": "json_object", "indent": 2}
    outputs = {"json_object": True, "whitespace_pattern": " ", "disable_any_whitespace": True}
    fields = {"response_format": format, "structured_outputs": outputs}
    answer = serve_scripted(["{}"]).http.post(CHAT, json=body(CHAT, **fields))
    assert answer.headers["x-unsupported-params"].split(", ") == [
        "response_format.indent",
        "structured_outputs.disable_any_whitespace",
        "structured_outputs.whitespace_pattern",
    ]


@pytest.mark.parametrize(
    ("format", "unused"),
    [
        ({"type": "text", "schema": SCHEMA}, "schema"),
        ({"type": "text", "json_schema": {"schema": SCHEMA}}, "json_schema.schema"),
        ({"type": "json_object", "grammar": GBNF}, "grammar"),
        ({"type": "grammar", "grammar": GBNF, "schema": SCHEMA}, "schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": True}, "schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": SCHEMA}, None),
        ({"type": "json_object", "schema": SCHEMA}, None),
        ({"type": "text", "schema": {}}, None),
    ],
)
def test_what_goes_with_another_type_is_named(
    serve_scripted: ServeScripted, format: dict[str, Any], unused: str | None
) -> None:
    answer = serve_scripted(["ok"]).http.post(CHAT, json=body(CHAT, response_format=format))
    named = answer.headers.get("x-unsupported-params")
    assert named == (unused and f"response_format.{unused}")


def test_torn_answers_say_so(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(['{"city": "Oslo"}'])
    for path in (CHAT, TEXT):
        fields = {"json_schema": SCHEMA}
        assert ask(server, path, **fields, max_tokens=5) == ('{"cit', "length")
        assert ask(server, path, **fields, stop=["Oslo"])[1] == "length"


def test_each_choice_keeps_to_it(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(lambda prompt, index: ["abc"[index]])
    answer = server.http.post(CHAT, json=body(CHAT, n=3, guided_choice=["a1", "b2", "c3"])).json()
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert contents == ["a1", "b2", "c3"]


def test_grammar_times(serve_scripted: ServeScripted) -> None:
    # WEB-31, WEB-32
    server = serve_scripted(["x"])
    for path in (CHAT, TEXT):
        fields = body(path, json_schema=SCHEMA)
        usage = [server.http.post(path, json=fields).json()["usage"]]
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        *_, last, _ = re.findall(r"data: (.*)", server.http.post(path, json=fields).text)
        for extra in (each["extra"] for each in (*usage, json.loads(last)["usage"])):
            assert extra["grammar_init_s"] > 0
            assert extra["grammar_per_token_s"] > 0


THOUGHT = 'I say <x> {"city": 1}'


@pytest.mark.parametrize("prefix", ["", "<think>"])
@pytest.mark.parametrize("reasoning", ["think", "hunyuan-a13b"])
def test_thought_is_free(serve_scripted: ServeScripted, prefix: str, reasoning: str) -> None:
    # VLLM-51
    said = f'{"" if prefix else "<think>"}{THOUGHT}</think>\n\nSure! {{"city": "Rome"}}'
    server = serve_scripted([said], reasoning=reasoning)
    fields = {"json_schema": SCHEMA} | ({"response_prefix": prefix} if prefix else {})
    message = server.http.post(CHAT, json=body(CHAT, **fields)).json()["choices"][0]["message"]
    assert message["reasoning_content"].strip() == THOUGHT
    jsonschema.validate(json.loads(message["content"]), SCHEMA)
    text, reason = ask(server, **fields)
    assert (text, reason) == (message["content"], "stop")


def test_thought_can_be_left_out(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(['{"city": "Oslo"}'], reasoning="think")
    assert ask(server, json_schema=SCHEMA) == ('{"city": "Oslo"}', "stop")
    assert ask(server, guided_choice=["no", "yes"])[0] in ("no", "yes")


def test_tags_in_strings_stay(serve_scripted: ServeScripted) -> None:
    said = '<think>a</think>{"a": "<think>b</think>"}'
    server = serve_scripted([*said], reasoning="think")
    assert ask(server, response_format={"type": "json_object"})[0] == '{"a": "<think>b</think>"}'


AROUND = {
    "harmony": (
        "<|channel|>analysis<|message|>{}<|end|>",
        "<|start|>assistant<|channel|>final<|message|>",
        "",
    ),
    "muse": (" to=self<|message|>{}<|eom|>", "<|start|>assistant to=user<|message|>", ""),
    "solar": ("<|think|>{}<|end|>", "<|begin|>assistant<|content|>", "<|end|>"),
    "cohere": ("<|START_THINKING|>{}<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "granite": ("<think>{}</think>", "<response>", "</response>"),
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_tags_around_the_answer(serve_scripted: ServeScripted, name: str) -> None:
    """Are none of it, and those in its strings are; in thought they free it of nothing."""
    thought, opening, closing = AROUND[name]
    content = json.dumps({"a": f"{opening} {closing}"})
    server = serve_scripted([*f"{thought.format('hm')}{opening}{content}{closing}"], reasoning=name)
    assert ask(server, response_format={"type": "json_object"}) == (content, "stop")
    escaped = thought.format(f"hm{opening}no{closing}")
    server = serve_scripted([*f"{escaped}{opening}{content}{closing}"], reasoning=name)
    text, _ = ask(server, response_format={"type": "json_object"})
    assert isinstance(json.loads(text), dict)


def test_space_behind_thought(serve_scripted: ServeScripted) -> None:
    """Is no content in front of JSON, and is what it is where it was asked for."""
    server = serve_scripted(["<think>a</think>", "\n\n", '{"a": 1}'], reasoning="think")
    assert ask(server, response_format={"type": "json_object"})[0] == '{"a": 1}'
    server = serve_scripted([*"<think>a</think>\n\nyes"], reasoning="think")
    assert ask(server, guided_choice=["\n\nyes", "no"])[0] == "\n\nyes"
    assert ask(server, guided_regex=r"\s*yes")[0] == "\n\nyes"


def test_thought_that_is_cut_off(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["<think>hmmmmmmm"], reasoning="think")
    assert ask(server, json_schema=SCHEMA, max_tokens=10) == ("", "length")


def test_a_budget_of_thought(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["<think>" + "hm" * 50 + '</think>{"city": "Oslo"}'], reasoning="think")
    answer = ask(server, json_schema=SCHEMA, reasoning_budget=5)
    assert answer == ('{"city": "Oslo"}', "stop")


@pytest.mark.parametrize("go_on", [{"response_prefix": "It is "}, {"continue_final_message": True}])
def test_a_message_that_has_begun(serve_scripted: ServeScripted, go_on: dict[str, Any]) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    server = serve_scripted(["x"], reasoning="think", engine={"chat_template": template})
    messages = [*USER, {"role": "assistant", "content": "It is "}]
    answer = ask(server, messages=messages, guided_choice=["hot", "<think>"], **go_on)
    assert answer[0] in ("hot", "<think>")


def test_explain_shows_the_grammar(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"])
    free = server.http.post(f"{CHAT}/explain", json={"messages": USER}).json()
    assert free["constraint"] is None
    asked = {"messages": USER, "guided_choice": ["hot", "cold"]}
    shown = server.http.post(f"{CHAT}/explain", json=asked).json()
    assert "hot" in shown["constraint"]
    assert "constraint" not in shown["sampling"]
