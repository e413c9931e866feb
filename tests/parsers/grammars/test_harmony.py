"""Calls of Harmony that keep to their grammar are read as right calls."""

import json

import jsonschema
import pytest

from enginebay import SchemaError
from enginebay_parsers import REASONING, TOOLS
from tests.parsers.cutting import Pipe, calls_of, content_of, run
from tests.parsers.grammars.law import SCHEMAS, assert_forced, assert_free, free
from tests.parsers.grammars.walk import Walker

HARMONY = TOOLS["harmony"]
NAMES = ("start", "end", "message", "channel", "constrain", "call", "return")
TAGS = tuple(f"<|{tag}|>" for tag in NAMES)


def test_forced_calls() -> None:
    # TAB-58
    assert_forced(HARMONY, TAGS)


def test_calls_in_free_text() -> None:
    # TAB-58
    headers = r"(<\|start\|>assistant)?<\|channel\|>\w+( <\|constrain\|>json)?<\|message\|>"
    assert_free(
        HARMONY, TAGS, words=[" to=", "to="], dropped=rf"{headers}|<\|(end|message|call|return)\|>"
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("behind", [True, False])
def test_calls_behind_thought(special: bool, parallel: bool, behind: bool) -> None:
    """Through the reasoning parser, too."""
    walker = Walker(TAGS, special=special)
    thought = "<|channel|>analysis<|message|>hm<|end|>" if behind else ""
    calls = HARMONY.grammar(SCHEMAS, parallel=parallel)
    assert calls
    assert calls.behind_thought
    must_call = calls.behind_thought if behind else calls.forced
    for grammar in (must_call, free(HARMONY, SCHEMAS, parallel=parallel)):
        for walk in walker.walks(grammar, range(20)):
            parts = run(
                lambda: Pipe(REASONING["harmony"], HARMONY, inside=False), [thought, walk.text]
            )
            found = calls_of(parts) if walk.ended else []
            for _, name, arguments in found:
                jsonschema.validate(json.loads(str(arguments)), SCHEMAS[str(name)])
            if walk.ended and grammar == must_call:
                assert found, walk.text
                assert content_of(parts) == ""


def test_names_that_cannot_be_written() -> None:
    assert HARMONY.grammar({"ns.tool-1": {}}, parallel=False)
    for name in ("a b", "<|call|>", "functions.f"):
        with pytest.raises(SchemaError):
            HARMONY.grammar({name: {}}, parallel=False)
