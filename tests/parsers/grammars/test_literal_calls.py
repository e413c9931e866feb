"""What the grammars of calls in the manner of Python allow, their parser reads as right calls."""

import pytest

from enginebay_parsers import TOOLS
from tests.parsers.grammars.law import assert_forced, assert_free

TAGS = {
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": ("<function_calls>", "</function_calls>"),
    "gemma": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
}


@pytest.mark.parametrize("name", TAGS)
def test_forced(name: str) -> None:
    assert_forced(TOOLS[name], TAGS[name])


@pytest.mark.parametrize("name", TAGS)
def test_free(name: str) -> None:
    tags = [*TAGS[name], "[now()]", "now()", "call:now{}", "[weather(", "'"]
    assert_free(TOOLS[name], tags)
