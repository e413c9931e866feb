"""Who may be called, who must be, and that every call is one of a function as it was offered."""

import json
from typing import Any

import jsonschema
import pytest

from tests.conftest import ServeScripted
from tests.support import Server

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TIME: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "time": TIME}
ODD = {"type": "object", "properties": {"a": {"$ref": "http://elsewhere/x.json"}}}


def tool(name: str, parameters: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, **fields}
    return {"type": "function", "function": function}


TOOLS = [tool(name, schema) for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "weather"}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, "tools": TOOLS, "max_tokens": 400, **fields}


def ask(server: Server, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message and why it ended, the same streamed and whole; its calls are valid."""
    answer = server.http.post(CHAT, json=body(**fields))
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    message, reason = choice["message"], choice["finish_reason"]
    calls: list[list[str]] = []
    content = ""
    for line in server.http.post(CHAT, json=body(stream=True, **fields)).text.splitlines():
        if line.startswith("data: {"):
            part = json.loads(line.removeprefix("data: "))["choices"][0]
            content += part["delta"].get("content") or ""
            for call in part["delta"].get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[-1][1] += call["function"].get("arguments") or ""
            streamed_reason = part["finish_reason"]
    assert streamed_reason == reason
    assert content == (message["content"] or "")
    assert calls == [list(call) for call in called(message)]
    if reason != "length":
        for name, arguments in called(message):
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    return message, reason


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]


def refused(server: Server, **fields: Any) -> dict[str, Any]:
    answer = server.http.post(CHAT, json=body(**fields))
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


WRONG = 'Sure: <tool_call>{"name": "nobody", "arguments": {"city": "Paris", "x": 1}}</tool_call>'


@pytest.mark.parametrize("format", ["hermes", "llama3-json", "mistral"])
@pytest.mark.parametrize("script", [WRONG, "I would rather not.", ""])
def test_required(serve_scripted: ServeScripted, format: str, script: str) -> None:
    # VLLM-52, VLLM-89: in the model's own syntax, so that no list of calls has to be mended
    server = serve_scripted([script], tools=format)
    message, reason = ask(server, tool_choice="required")
    assert called(message)
    assert message["content"] is None
    assert reason == "tool_calls"


@pytest.mark.parametrize("format", ["hermes", "xlam", "kimi-k2"])
def test_named(serve_scripted: ServeScripted, format: str) -> None:
    # VLLM-50, VLLM-87, VLLM-88: one call of that function, and the end is the engine's
    server = serve_scripted([WRONG], tools=format)
    for choice in (NAMED, allowed("required", "weather")):
        message, reason = ask(server, tool_choice=choice)
        assert {name for name, _ in called(message)} == {"weather"}
        assert message["content"] is None
        assert reason == ("stop" if choice == NAMED else "tool_calls")
    assert len(called(ask(server, tool_choice=NAMED)[0])) == 1


def test_the_old_name(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([WRONG], tools="hermes")
    functions = [each["function"] for each in TOOLS]
    fields = {"messages": USER, "functions": functions, "function_call": {"name": "weather"}}
    choice = server.http.post(CHAT, json=fields).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["function_call"]["name"] == "weather"
    jsonschema.validate(json.loads(choice["message"]["function_call"]["arguments"]), WEATHER)
    error = server.http.post(CHAT, json={**fields, "function_call": {"name": "no"}}).json()["error"]
    assert error["param"] == "function_call"


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
@pytest.mark.parametrize("tags", ["", "<think>Hm</think>\n\n"])
def test_calls_of_free_answers(
    serve_scripted: ServeScripted, choice: dict[str, Any], tags: str
) -> None:
    # TAB-58
    server = serve_scripted([f"{tags}{WRONG}"], tools="hermes", reasoning="think")
    message, reason = ask(server, **choice)
    assert message["content"].strip().startswith("Sure:")
    assert len(called(message)) == 1
    assert reason == "tool_calls"
    free = serve_scripted([f"{tags}No <call>."], tools="hermes", reasoning="think")
    message, reason = ask(free, **choice)
    assert (message["content"].strip(), called(message), reason) == ("No <call>.", [], "stop")


def test_calls_that_need_no_tag(serve_scripted: ServeScripted) -> None:
    # TAB-58: constrained where the answer begins, also behind thought; text elsewhere is text
    call = '{"name": "weather", "parameters": {"city": "Paris", "days": "no"}}'
    for said in (call, f"<think>a</think>\n\n{call}"):
        server = serve_scripted([said], tools="llama3-json", reasoning="think")
        message, reason = ask(server)
        assert [name for name, _ in called(message)] == ["weather"]
        assert reason == "tool_calls"
    text = f"Like this: {call}"
    message, reason = ask(serve_scripted([text], tools="llama3-json"))
    assert (message["content"], reason) == (text, "stop")


def test_allowed_tools_narrow_what_can_be_called(serve_scripted: ServeScripted) -> None:
    prompts: list[str] = []

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return ['<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>']

    server = serve_scripted(script, tools="hermes")
    message, _ = ask(server, tool_choice=allowed("auto", "weather"))
    assert [name for name, _ in called(message)] == ["weather"]
    assert "time" in prompts[0]  # the prompt, and what is cached of it, stays as it was
    message, _ = ask(server, tool_choice=allowed("auto", "weather", "time"))
    assert [name for name, _ in called(message)] == ["time"]


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_no_second_call(serve_scripted: ServeScripted, choice: Any) -> None:
    # VLLM-6: better than to leave the others out
    call = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 1}}\n</tool_call>'
    )
    server = serve_scripted([call, "\n", call], tools="hermes")
    fields = {"tool_choice": choice, "parallel_tool_calls": False}
    message, _ = ask(server, **fields)
    assert len(called(message)) == 1
    tokens = server.http.post(CHAT, json=body(**fields)).json()["usage"]["completion_tokens"]
    assert tokens <= len(call) + 1
    parallel, _ = ask(server, tool_choice="auto")
    assert len(called(parallel)) == 2


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_forced_calls_come_behind_thought(serve_scripted: ServeScripted, choice: Any) -> None:
    # VLLM-51
    said = "<think>I would rather not.</think>\n\nNo!"
    server = serve_scripted([said], tools="hermes", reasoning="think")
    message, _ = ask(server, tool_choice=choice)
    assert message["reasoning_content"] == "I would rather not."
    assert message["content"] is None
    assert called(message)
    inside = serve_scripted([said.removeprefix("<think>")], tools="hermes", reasoning="think")
    message, _ = ask(inside, tool_choice=choice, response_prefix="<think>")
    assert message["reasoning_content"] == "I would rather not."
    assert called(message)


@pytest.mark.parametrize("format", ["hermes", "llama3-json"])
@pytest.mark.parametrize("in_thought", [True, False])
@pytest.mark.parametrize("prefix", ["", "<think>"])
def test_an_answer_that_may_call_may_end_in_thought(
    serve_scripted: ServeScripted, format: str, in_thought: bool, prefix: str
) -> None:
    """Models do that, and are not made to go on; but where they must call."""
    said = "<think>I give up.".removeprefix(prefix)
    server = serve_scripted([said], tools=format, reasoning="think", tools_in_reasoning=in_thought)
    fields = {"response_prefix": prefix} if prefix else {}
    message, reason = ask(server, **fields)
    assert (message["reasoning_content"], message["content"]) == ("I give up.", "")
    assert (called(message), reason) == ([], "stop")
    if prefix:
        message, reason = ask(server, tool_choice="required", **fields)
        assert message["reasoning_content"] == "I give up."
        assert called(message)


@pytest.mark.parametrize("in_thought", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_calls_that_thought_ends_with(
    serve_scripted: ServeScripted, in_thought: bool, begun: bool
) -> None:
    """A message that begins without an end of thought is a call all the same, so a right one."""
    # TAB-58
    start = "<|channel|>analysis<|message|>"
    call = '<|channel|>commentary to=functions.no <|constrain|>json<|message|>{"x": 1}<|call|>'
    for said in (f"hm{call}", f"hm<|start|>assistant{call}", f"hm<|end|><|start|>assistant{call}"):
        server = serve_scripted(
            [*(said if begun else start + said)],
            tools="harmony",
            reasoning="harmony",
            tools_in_reasoning=in_thought,
        )
        fields = {"response_prefix": start} if begun else {}
        message, reason = ask(server, **fields)
        assert called(message), said
        assert message["reasoning_content"] == "hm"
        assert reason == "tool_calls"


def test_thought_that_another_tag_ends(serve_scripted: ServeScripted) -> None:
    said = "<|think|>hm<|content|>So be it. <|tool_calls|><|tool_call:begin|>"
    server = serve_scripted([*said], tools="solar", reasoning="solar", tools_in_reasoning=False)
    message, _ = ask(server)
    assert message["reasoning_content"] == "hm"
    assert called(message)
    assert message["content"].strip() == "So be it."


def test_calls_cut_off_are_torn(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([WRONG], tools="hermes")
    assert ask(server, tool_choice="required", max_tokens=60)[1] == "length"


def test_a_forced_call_goes_before_a_response_format(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["[1]"], tools="hermes")
    message, _ = ask(server, tool_choice="required", response_format={"type": "json_object"})
    assert called(message)


def test_a_response_format_beside_tools(serve_scripted: ServeScripted) -> None:
    format = {"type": "json_object"}
    server = serve_scripted(['<think>a</think>{"a": 1}'], tools="hermes", reasoning="think")
    message, reason = ask(server, response_format=format)
    assert (json.loads(message["content"]), called(message), reason) == ({"a": 1}, [], "stop")
    server = serve_scripted([WRONG.removeprefix("Sure: ")], tools="hermes", reasoning="think")
    message, reason = ask(server, response_format=format)
    assert (message["content"], len(called(message)), reason) == (None, 1, "tool_calls")


def test_no_tools_no_calls(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([WRONG], tools="hermes")
    message, reason = ask(server, tool_choice="none")
    assert (message["content"], reason) == (WRONG, "stop")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": NAMED, "tools": None}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": allowed("auto", "weather", "no")}, "tool_choice"),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": allowed("none", "time")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool("f", ODD)], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [*TOOLS, tool("f", ODD, strict=True)]}, "tools[2].function.parameters"),
        (
            {"tools": [tool("f", {"type": "string"})], "tool_choice": "required"},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required", "response_prefix": "Well, "}, "tool_choice"),
        ({"tools": [*TOOLS, tool("time", WEATHER)]}, "tools[2].function.name"),
        ({"tools": [*TOOLS, tool("time", TIME, strict=True)]}, "tools[2].function.name"),
    ],
)
def test_refusals(serve_scripted: ServeScripted, fields: dict[str, Any], param: str) -> None:
    server = serve_scripted(["ok"], tools="hermes")
    assert refused(server, **fields)["param"] == param
    assert ask(server)[0]["content"] == "ok"


def test_odd_schemas_are_kept_as_far_as_they_go(serve_scripted: ServeScripted) -> None:
    odd = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}, "b": {"type": "integer"}}}
    call = '<tool_call>\n{"name": "odd", "arguments": {"a": 1, "b": 5}}\n</tool_call>'
    server = serve_scripted([call], tools="hermes")
    answer = server.http.post(CHAT, json=body(tools=[tool("odd", odd)]))
    assert answer.headers["x-unsupported-params"] == "tools[0].function.parameters"
    [(name, arguments)] = called(answer.json()["choices"][0]["message"])
    assert (name, json.loads(arguments)) == ("odd", {"a": 1, "b": 5})
    strict = serve_scripted([call], tools="hermes", server={"strict_params": True})
    assert refused(strict, tools=[tool("odd", odd)])["param"] == "tools[0].function.parameters"


def test_names_that_a_format_cannot_write(serve_scripted: ServeScripted) -> None:  # TAB-58
    call = "<tool_call>\n<function=time>\n</function>\n</tool_call>"
    server = serve_scripted([call], tools="qwen3-coder")
    blank, both = tool("a b", TIME), [tool("a b", TIME), tool("time", TIME)]
    for tools, names in (([blank], []), (both, ["time"])):
        answer = server.http.post(CHAT, json=body(tools=tools))
        assert answer.headers["x-unsupported-params"] == "tools[0].function.name"
        message = answer.json()["choices"][0]["message"]
        assert [name for name, _ in called(message)][: len(names)] == names
        assert refused(server, tools=tools, tool_choice="required")["param"] == (
            "tools[0].function.name"
        )
    error = refused(server, tools=[tool("a b", TIME, strict=True)])
    assert error["param"] == "tools[0].function.name"
    assert "'a b'" in error["message"]


def test_formats_that_cannot_be_forced(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], tools="none")
    for choice in ("required", NAMED):
        error = refused(server, tool_choice=choice)
        assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")
        assert "config.yml" in error["message"]
    assert ask(server, tool_choice="auto")[0]["content"] == "ok"
    answer = server.http.post(CHAT, json=body(tools=[tool("f", TIME, strict=True)]))
    assert answer.headers["x-unsupported-params"] == "tools[0].function.strict"


def test_an_engine_that_keeps_to_no_grammar(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([WRONG], tools="hermes", engine={"constraints": False})
    error = refused(server, tool_choice="required")
    assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")
    choice = server.http.post(CHAT, json=body()).json()["choices"][0]
    assert [name for name, _ in called(choice["message"])] == ["nobody"]


def test_hostile_schemas(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], tools="hermes", engine={"context_length": 65_536})
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    for schema in (deep, {"type": 5}):
        sent = json.dumps(body(tools=[tool("f", schema)]))
        answer = server.http.post(CHAT, content=sent, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-unsupported-params"] == "tools[0].function.parameters"
        forced = {**json.loads(sent), "tool_choice": "required"}
        refusal = server.http.post(CHAT, content=json.dumps(forced)).json()["error"]
        assert refusal["param"] == "tools[0].function.parameters"
