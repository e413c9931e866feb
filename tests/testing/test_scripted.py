"""What the scripted engine says is what its script says, and what a grammar makes of that."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import (
    Case,
    Delta,
    Free,
    GenerationRequest,
    Grammar,
    InvalidRequestError,
    Pattern,
    SamplingParams,
    ServingError,
    Text,
    UnsupportedParameterError,
    UpTo,
    choice,
    json_value,
    sequence,
)
from enginebay.contract.grammar import Lark
from enginebay.testing import ScriptedEngine

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = sequence('{"name": "weather", "arguments": ', json_value(CITY), "}</tool_call>")
CALLS = Free((Case(Text("<tool_call>"), CALL),))
THING = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 12}, "minItems": 2},
        "kind": {"enum": ["é", "è", "日"]},
        "more": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["name", "sizes", "kind", "more"],
    "additionalProperties": False,
}

SCRIPTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def said(script: str, constraint: Grammar | None, **sampling: object) -> list[Delta]:
    engine = ScriptedEngine([script])
    params = SamplingParams(**{"max_tokens": 500, "constraint": constraint, **sampling})
    engine.add_request(GenerationRequest(request_id="it", prompt_token_ids=(65,), sampling=params))
    deltas: list[Delta] = []
    while not deltas or deltas[-1].finish_reason is None:
        for _, item in engine.step():
            assert isinstance(item, Delta), item
            deltas.append(item)
    return deltas


def text_and_reason(deltas: list[Delta]) -> tuple[str, str | None]:
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


@pytest.mark.parametrize(
    ("constraint", "script", "expected"),
    [
        (Pattern("yes|no"), "maybe", "no"),
        (Pattern("yes|no"), "yes", "yes"),
        (Pattern("[ab]*c"), "?", "abc"),
        (Pattern(".*"), "one\ntwo", "one"),
        (Pattern("[é-ü]+"), "ö!", "ö"),
        (choice("red", "green"), "a green one", "red"),
        (choice("red", "green"), "green", "green"),
        (json_value(CITY), '{"city": "Žilina"}', '{"city": "Žilina"}'),
        (json_value(CITY), '{"x": "Oslo"}', '{"city":"x"}'),
        (json_value(CITY), "", '{"city":""}'),
        (json_value({}), "", '""'),
        (json_value({"type": "object"}), "", "{}"),
        (sequence(UpTo("</think>"), json_value(CITY)), "so</think>", 'so</think>{"city":""}'),
        (sequence(UpTo("</think>"), json_value(CITY)), "so", 'so</think>{"city":""}'),
        (choice(json_value(CITY), sequence("<think>", UpTo("</think>"), "x")), "", '{"city":""}'),
        (choice("<tool_call>", sequence("<think>", UpTo("</think>"))), "No.", "<tool_call>"),
        (CALLS, "No.", "No."),
        (
            CALLS,
            "Well: <tool_call>Oslo",
            'Well: <tool_call>{"name": "weather", "arguments": {"city":"Oslo"}}</tool_call>',
        ),
    ],
)
def test_a_script_is_kept_to_a_grammar(constraint: Grammar, script: str, expected: str) -> None:
    assert text_and_reason(said(script, constraint)) == (expected, "stop")


@given(SCRIPTS)
def test_whatever_the_script_the_answer_is_valid(script: str) -> None:
    text, reason = text_and_reason(said(script, json_value(THING)))
    assert reason == "stop"
    jsonschema.validate(json.loads(text), THING)


@given(SCRIPTS)
def test_whatever_the_script_its_calls_are_valid(script: str) -> None:
    text, reason = text_and_reason(said(f"{script}<tool_call>{script}", CALLS))
    assert reason == "stop"
    call = text.partition("<tool_call>")[2].partition("</tool_call>")[0]
    jsonschema.validate(json.loads(call)["arguments"], CITY)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"max_tokens": 5}, ('{"cit', "length")),
        ({"stop": ("city",)}, ('{"', "length")),
        ({"stop": ("}",), "include_stop_str_in_output": True}, ('{"city":"ab"}', "stop")),
        ({"max_tokens": 13}, ('{"city":"ab"}', "stop")),
    ],
)
def test_a_cut_before_the_end_of_the_grammar_is_told(
    sampling: dict[str, object], expected: tuple[str, str]
) -> None:
    assert text_and_reason(said("ab", json_value(CITY), **sampling)) == expected


def test_a_stop_token_ends_where_the_grammar_may() -> None:
    deltas = said("b!a", Pattern("[ab!]+!?"), stop_token_ids=(ord("!"),))
    assert text_and_reason(deltas) == ("b", "stop")
    assert deltas[-1].stop_reason == ord("!")


def test_time_spent_on_a_grammar_is_told() -> None:
    assert all(delta.grammar_s > 0 for delta in said("yes", Pattern("yes")))
    assert all(delta.grammar_s == 0 for delta in said("yes", None))


def test_without_constraints_there_is_an_error() -> None:
    engine = ScriptedEngine(["yes"], constraints=False)
    assert not engine.info.constraints
    with pytest.raises(UnsupportedParameterError):
        engine.compile(Text("yes"))


def test_a_grammar_that_gets_stuck_fails_its_request_alone() -> None:
    endless = Lark('start: "a" start')  # compiles, and has no text that ends
    engine = ScriptedEngine(["ab"])
    for id, constraint in (("endless", endless), ("free", None)):
        sampling = SamplingParams(max_tokens=9, constraint=constraint)
        engine.add_request(
            GenerationRequest(request_id=id, prompt_token_ids=(65,), sampling=sampling, n=2)
        )
    steps = [list(engine.step()) for _ in range(3)]
    failed = [id for step in steps for id, item in step if isinstance(item, ServingError)]
    assert failed == ["endless"]
    ended = [id for step in steps for id, item in step if getattr(item, "finish_reason", None)]
    assert ended == ["free", "free"]


def test_a_grammar_that_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be compiled"):
        ScriptedEngine(["yes"]).compile(Pattern("("))
