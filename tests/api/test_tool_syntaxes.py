"""Tool calls in syntaxes other than Hermes', over real HTTP."""

from typing import Any

import pytest

from tests.conftest import ServeScripted

FREE = {"constraints": False}  # what a model may write that nothing keeps from it
USER = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
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
