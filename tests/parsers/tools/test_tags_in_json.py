"""Tags in the strings of JSON values between tags."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay_parsers import TOOLS
from enginebay_parsers.xml.xml_calls import XmlCalls
from tests.parsers.cutting import cut, run

PARSER = TOOLS["qwen3-coder"]
SCHEMAS = {"f": {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "array"}}}}
END = "\n</parameter>\n</function>\n</tool_call>"


def written(a: str, b: str) -> str:
    head = "<tool_call>\n<function=f>\n<parameter=a>\n"
    return f"{head}{a}\n</parameter>\n<parameter=b>\n{b}{END}"


@given(st.data(), st.sampled_from([END, "</parameter></function>", "</function></tool_call>", "x"]))
def test_a_tag_in_a_string_is_text(data: st.DataObject, tag: str) -> None:
    value = json.dumps([tag, 'a"b', tag], ensure_ascii=False).replace("\\n", " ")
    text = written(value, value)
    expected = [("call", 0, "f", f'{{"a": {value}, "b": {value}}}')]
    pieces = data.draw(cut(st.just(text)))
    assert run(lambda: PARSER.parser(SCHEMAS), pieces) == expected


@given(st.data())
def test_a_string_that_is_never_closed_ends_at_the_first_tag(data: st.DataObject) -> None:
    text = written('["a]', '["b"]')
    parts = run(lambda: PARSER.parser(SCHEMAS), data.draw(cut(st.just(text))))
    assert parts == [("call", 0, "f", '{"a": "[\\"a]", "b": ["b"]}')]


@pytest.mark.parametrize("quote", ['"', "it's \""])
def test_quotes_of_python_do_not_hide_the_end(quote: str) -> None:
    assert isinstance(PARSER, XmlCalls)
    text = written(repr([quote]), "[1]")
    parts = run(lambda: PARSER.parser(SCHEMAS), [text])
    assert parts == [("call", 0, "f", f'{{"a": {json.dumps([quote])}, "b": [1]}}')]
