"""Formats name the texts that they consist of. REAL-5"""

import re

import pytest

from enginebay import ReasoningFormat, Span, ToolFormat
from enginebay_parsers import REASONING, TOOLS

_TAG = re.compile(r"</?[|｜]?[^<>\s=]+>|\[/?[A-Z_]+\d*\]|\[unused\d+\]")
_DATA = {"<city>", "</city>"}


@pytest.mark.parametrize("format", [*REASONING.items(), *TOOLS.items()], ids=lambda item: item[0])
def test_every_tag_of_the_example_is_in_the_syntax(
    format: tuple[str, ReasoningFormat | ToolFormat],
) -> None:
    _, described = format
    syntax = described.syntax()
    tags = set(_TAG.findall(described.example)) - _DATA
    assert [tag for tag in tags if not any(tag in text for text in syntax)] == []
    assert all(syntax)


@pytest.mark.parametrize("format", [*REASONING.items()], ids=lambda item: item[0])
def test_the_marks_of_a_reasoning_format_are_in_its_syntax(
    format: tuple[str, ReasoningFormat],
) -> None:
    _, described = format
    declared = set(ReasoningFormat.syntax(described)) - {described.example}
    tags = {tag for text in declared for tag in _TAG.findall(text)}
    assert [tag for tag in tags if not any(tag in text for text in described.syntax())] == []


@pytest.mark.parametrize("format", [*TOOLS.items()], ids=lambda item: item[0])
def test_the_spans_of_a_tool_format_are_in_its_syntax(format: tuple[str, ToolFormat]) -> None:
    _, described = format
    tags = {
        tag for span in described.spans for text in (span.start, span.end)
        for tag in _TAG.findall(text)
    }  # fmt: skip
    assert [tag for tag in tags if not any(tag in text for text in described.syntax())] == []


def test_a_format_of_a_plugin_has_its_example_and_its_spans() -> None:
    class Calls(ToolFormat):
        example = "<|say|>f()"
        spans = (Span("<|call|>", "<|end|>"),)
        matches = parser = None  # type: ignore[assignment]

    assert Calls.__abstractmethods__ == frozenset()
    assert Calls().syntax() == ("<|say|>f()", "<|call|>", "<|end|>")
