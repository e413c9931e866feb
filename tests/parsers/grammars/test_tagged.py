"""Calls with JSON arguments that keep to their grammar are read as right calls."""

import re

import pytest

from enginebay import SchemaError
from enginebay_parsers import TOOLS
from enginebay_parsers.json.base import JsonFormat
from enginebay_parsers.json.named_calls import NamedCalls
from tests.parsers.grammars.law import SCHEMAS, assert_forced, assert_free, calls, forced, free
from tests.parsers.grammars.walk import Walker

FORMATS = {name: tools for name, tools in TOOLS.items() if isinstance(tools, JsonFormat)}
BARE = {
    "llama3-json": ['{"name": "weather"', '{"type": "function", "function" :"now"'],
    "xlam": ['[{"name": "weather"', ' [ {"name":"now"'],
    "functionary-v3.2": ["weather\n", "now\n", "all\n"],
    "glm-4": ["weather\n", "now \n"],
}


def tags_of(tools: JsonFormat) -> list[str]:
    marks = [mark for mark, _ in tools.marks] if isinstance(tools, NamedCalls) else []
    header = tools.layout.header
    texts = (*tools.starts, tools.end, tools.opening, tools.closing, header, *marks)
    return [tag for text in texts for tag in re.findall(r"<[^<>]+>|\[\w+\]", text)]


@pytest.mark.parametrize("name", FORMATS)
def test_forced_calls(name: str) -> None:
    # TAB-58
    tools = FORMATS[name]
    assert_forced(tools, tags_of(tools), header=tools.layout.header)


@pytest.mark.parametrize("name", FORMATS)
def test_calls_in_free_text(name: str) -> None:
    # TAB-58
    tools = FORMATS[name]
    words = [start for start in tools.starts if not start.startswith("<|")]
    if tools.bare:
        words += BARE[name]
    dropped = r"(>>>|^)\s*all *\n" if name == "functionary-v3.2" else "(?!)"
    assert_free(tools, tags_of(tools), words=words, dropped=dropped)


@pytest.mark.parametrize("name", FORMATS)
def test_names_that_cannot_be_written(name: str) -> None:
    tools = FORMATS[name]
    for good in ("get_weather-2", "ns.tool", "日本"):
        assert tools.grammar({good: {}}, parallel=False)
    with pytest.raises(SchemaError):
        tools.grammar({" ": {}}, parallel=False)
    if isinstance(tools, NamedCalls):
        with pytest.raises(SchemaError):
            tools.grammar({'a"b': {}}, parallel=False)


def test_content_is_no_function() -> None:
    with pytest.raises(SchemaError):
        TOOLS["functionary-v3.2"].grammar({"all": {}}, parallel=True)


def test_arguments_are_an_object() -> None:
    nullable = {"type": ["object", "null"], "properties": {"a": {}}}
    grammar = forced(TOOLS["hermes"], {"f": nullable}, parallel=False)
    for walk in Walker((), special=False).walks(grammar, range(9)):
        assert '{"name": "f", "arguments": {' in walk.text
    with pytest.raises(SchemaError) as error:
        TOOLS["hermes"].grammar({"f": {"type": "array"}}, parallel=False)
    assert error.value.path == "/type"


# What a parser is lenient about, where a call needs no start tag: none of it leads around the
# grammar.
LOOKALIKES = {
    "llama3-json": [
        '{"parameters": {"days": 0}, "name": "weather"}',
        '{"n\\u0061me": "weather", "parameters": {}}',
        '{"name": "w\\u0065ather", "parameters": {}}',
        '{"id": {"a": 1}, "name": "weather", "parameters": {}}',
    ],
    "xlam": ['[{"arguments": {}, "name": "weather"}]'],
    "functionary-v3.2": ['weather{"days": 0}', "weather {}"],
    "glm-4": ['weather{"days": 0}', "weather {}"],
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_begins_otherwise_is_no_call(name: str) -> None:
    for text in LOOKALIKES[name]:
        assert calls(TOOLS[name], SCHEMAS, text) == ([], text)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("parallel", [True, False])
def test_tags_that_are_spelled_open_calls_too(name: str, parallel: bool) -> None:
    """A parser cannot tell a special token from its letters."""
    tools = FORMATS[name]
    walker = Walker(tags_of(tools), special=True)
    grammar = free(tools, SCHEMAS, parallel=parallel)
    for start in (*tools.starts, tools.opening if tools.closing else ""):
        if start:
            assert walker.accepts(grammar, f"So: {start}")
            assert not walker.accepts(grammar, f"So: {start}?")
