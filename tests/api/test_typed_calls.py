"""Calls that are no JSON, over HTTP: typed by the request's tools and streamed."""

import json
from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.parsers.tools.xml_writers import WRITERS
from tests.support import InlineBackend, plugins_with, scripted_config, serve

FREE = {"constraints": False}  # what a model may write that nothing keeps from it
USER: Any = [{"role": "user", "content": "hi"}]
STRING = {"type": "string"}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "properties": {
                    "zip": STRING,
                    "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    "limit": {"type": "integer"},
                    "where": {"$ref": "#/$defs/place"},
                },
                "$defs": {"place": {"type": "object", "properties": {"city": STRING}}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
ARGUMENTS: dict[str, Any] = {
    "zip": "02134",
    "exact": False,
    "limit": 5,
    "where": {"city": 'the "old" Zürich'},
}
PYTHON = ", ".join(f"{key}={value!r}" for key, value in ARGUMENTS.items())
ANSWERS = {each.name: each.write(("find", ARGUMENTS), ("stop", {})) for each in WRITERS} | {
    "pythonic": f"[find({PYTHON}), stop()]",
    "gemma": (
        '<|tool_call>call:find{zip:<|"|>02134<|"|>,exact:false,limit:5,'
        'where:{city:<|"|>the "old" Zürich<|"|>}}<tool_call|><|tool_call>call:stop{}<tool_call|>'
    ),
    "minimax-m3": (
        '<tool_call>\n<invoke name="find"><zip>02134</zip><exact>false</exact><limit>5</limit>'
        '<where><city>the "old" Zürich</city></where></invoke>\n<invoke name="stop"></invoke>\n'
        "</tool_call>"
    ).replace("<", "]<]minimax[>[<"),
}  # fmt: skip


@pytest.mark.parametrize("form", ANSWERS)
def test_calls_whole_and_streamed(serve_scripted: ServeScripted, form: str) -> None:
    # TAB-50, TAB-51, TAB-53, TAB-55, TAB-56, TAB-57, VLLM-61, VLLM-65, VLLM-66, LF-12
    # and complaints 1, 4, 5
    text = ANSWERS[form]
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    server = serve_scripted(pieces, engine=FREE, tools=form)
    chat = server.openai.chat.completions
    choice = chat.create(model="scripted", messages=USER, tools=TOOLS, n=2).choices[1]
    assert choice.finish_reason == "tool_calls"
    assert not (choice.message.content or "").strip()
    calls: Any = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["find", "stop"]
    assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS, {}]
    assert len({call.id for call in calls}) == 2

    with chat.stream(model="scripted", messages=USER, tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    streamed: Any = final.message.tool_calls
    assert [call.function.arguments for call in streamed] == [
        call.function.arguments for call in calls
    ]
    # Without tools, or where none may be called, it is text.
    plain = chat.create(model="scripted", messages=USER, tools=TOOLS, tool_choice="none")
    assert plain.choices[0].message.content == text
    assert plain.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("form", ANSWERS)
def test_arguments_come_as_they_form(form: str) -> None:
    # TAB-56, VLLM-64; complaints 1 and 2
    engine = ScriptedEngine(list(ANSWERS[form]), **FREE)
    plugins = plugins_with(scripted=lambda settings: InlineBackend(engine))
    with serve(scripted_config(tools=form), plugins) as server:
        stream = server.openai.chat.completions.create(
            model="scripted", messages=USER, tools=TOOLS, stream=True
        )
        pieces: Any = [c for chunk in stream for c in chunk.choices[0].delta.tool_calls or []]
    for index, name in enumerate(("find", "stop")):
        first, *rest = [piece for piece in pieces if piece.index == index]
        assert (first.function.name, first.type) == (name, "function")
        assert all(piece.function.name is None and piece.id is None for piece in rest)
    shown = [piece.function.arguments for piece in pieces if piece.index == 0]
    assert json.loads("".join(shown)) == ARGUMENTS
    assert [piece for piece in shown if piece in list("2134")] == list("2134")


@pytest.mark.parametrize("form", ANSWERS)
def test_what_is_no_call_is_the_answer(serve_scripted: ServeScripted, form: str) -> None:
    # Complaint 8
    text = ANSWERS[form].replace("find", "").replace("stop", "")
    server = serve_scripted([text], engine=FREE, tools=form)
    answer = server.openai.chat.completions.create(model="scripted", messages=USER, tools=TOOLS)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
