"""Tool calls in syntaxes other than Hermes', over real HTTP."""

import json
from typing import Any

import pytest

from enginebay_parsers import TOOLS as TOOL_FORMATS
from tests.conftest import ServeScripted

FREE = {"constraints": False}  # what a model may write that nothing keeps from it
USER = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
WEATHER: Any = [{"type": "function", "function": {"name": "get_weather"}}]
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
ANSWERS = {
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abcdefgh1[ARGS]{}',
    "mistral-list": '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]',
    "kimi-k2": KIMI,
    "llama3-json": '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
}


@pytest.mark.parametrize("tools", ANSWERS)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_calls(serve_scripted: ServeScripted, tools: str, size: int) -> None:
    # TAB-51 TAB-55 TAB-56 TAB-57 VLLM-53 VLLM-54 VLLM-56 VLLM-66 VLLM-67 VLLM-99; complaints 1, 4
    text = ANSWERS[tools]
    server = serve_scripted(
        [text[i : i + size] for i in range(0, len(text), size)], engine=FREE, tools=tools
    )
    create = server.openai.chat.completions.create
    choice = create(model="scripted", messages=USER, tools=TOOLS).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls: Any = choice.message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ]
    ids = [call.id for call in calls]
    assert len(set(ids)) == 2
    if tools == "kimi-k2":
        assert ids == ["functions.f:0", "functions.g:1"]
    elif "mistral" in tools:
        assert all(len(id) == 9 and id.isalnum() for id in ids)
        assert tools == "mistral-list" or ids[1] == "abcdefgh1"

    pieces: list[Any] = [
        piece
        for chunk in create(model="scripted", messages=USER, tools=TOOLS, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or []
    ]
    for index, call in enumerate(calls):
        first, *rest = [piece for piece in pieces if piece.index == index]
        assert first.function.name == call.function.name
        assert all(piece.function.name is None and piece.id is None for piece in rest)
        said = [piece.function.arguments or "" for piece in (first, *rest)]
        assert "".join(said) == call.function.arguments


@pytest.mark.parametrize("text", ["[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS] no", "f"])
def test_what_is_no_call_is_content(serve_scripted: ServeScripted, text: str) -> None:
    # complaint 8
    server = serve_scripted(list(text), engine=FREE, tools="mistral")
    create = server.openai.chat.completions.create
    choice = create(model="scripted", messages=USER, tools=TOOLS).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", text)
    assert choice.message.tool_calls is None


@pytest.mark.parametrize("tools", TOOL_FORMATS)
def test_an_answer_that_ends_inside_a_call_is_cut_off(
    serve_scripted: ServeScripted, tools: str
) -> None:
    """The answer ends at every character; streamed and whole it has the same calls and end."""
    # FIX-11 LF-12
    text = TOOL_FORMATS[tools].example

    def answer(prompt: str, choice: int) -> list[str]:
        return [text[: int(prompt.rpartition("at ")[2].split()[0]) + choice]]

    engine = {**FREE, "chat_template": "{{ messages[0].content }}"}
    server = serve_scripted(answer, engine=engine, tools=tools)
    ends = set()
    for at in range(1, len(text) + 1, 128):
        ask = [{"role": "user", "content": f"at {at} "}]
        body: Any = {"model": "scripted", "messages": ask, "tools": WEATHER}
        body["n"] = min(128, len(text) + 1 - at)
        whole = server.openai.chat.completions.create(**body).choices
        streamed: list[tuple[dict[int, str], list[str]]] = [({}, []) for _ in whole]
        for chunk in server.openai.chat.completions.create(**body, stream=True):
            for choice in chunk.choices:
                calls, reasons = streamed[choice.index]
                for piece in choice.delta.tool_calls or ():
                    said = piece.function.arguments or ""
                    calls[piece.index] = calls.get(piece.index, "") + said
                reasons += [choice.finish_reason] if choice.finish_reason else []
        for choice, (calls, reasons) in zip(whole, streamed, strict=True):
            found = [call.function.arguments for call in choice.message.tool_calls or ()]
            assert (found, [choice.finish_reason]) == (list(calls.values()), reasons)
            broken = [arguments for arguments in found if not is_json(arguments)]
            usual = "tool_calls" if found else "stop"
            assert choice.finish_reason == ("length" if broken else usual)
            ends.add(choice.finish_reason)
    assert {"stop", "tool_calls"} <= ends


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
