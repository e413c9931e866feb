"""Tool-call formats: what is a call and what is the answer."""

import json

import pytest

from enginebay import ContentDelta, ToolCallDelta
from enginebay_parsers import TOOLS
from enginebay_parsers.json.object_calls import JsonCalls
from tests.parsers.cutting import joined, run, same_however_cut

HERMES = TOOLS["hermes"]


def c(text: str) -> tuple[str, str]:
    return ("content", text)


def call(index: int, name: str, arguments: str = "{}") -> tuple[object, ...]:
    return ("call", index, name, arguments)


def tagged(*bodies: str) -> str:
    return "".join(f"<tool_call>{body}</tool_call>" for body in bodies)


CALLS: list[tuple[str, list[tuple[object, ...]]]] = [
    ("", []),
    ("no call", [c("no call")]),
    # TAB-50
    (
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": null}]}}\n</tool_call>',
        [call(0, "f", '{"a": [1, {"b": null}]}')],
    ),
    ('x<tool_call>{"name":"f"}</tool_call>y', [c("x"), call(0, "f"), c("y")]),
    ('<tool_call>{"name":"f","parameters":{"a":1}}</tool_call>', [call(0, "f", '{"a":1}')]),
    ('<tool_call>{"arguments": { "a" : 1 } , "name" : "f"}', [call(0, "f", '{ "a" : 1 }')]),
    ('<tool_call>{"type":"function","id":7,"name":"f","x":[{"name":"g"}]}', [call(0, "f")]),
    (tagged('{"name":"f","name":1,"name":"g"}'), [call(0, "f")]),
    (tagged('{"name":"f\\u00e9\\n"}'), [call(0, "fé")]),
    # TAB-51, TAB-55
    (tagged('{"name":"f"}', '{"name":"g"}'), [call(0, "f"), call(1, "g")]),
    (
        'a<tool_call>{"name":"f"}</tool_call>\n<tool_call>{"name":"f"}</tool_call>b',
        [c("a"), call(0, "f"), c("\n"), call(1, "f"), c("b")],
    ),
    (tagged('{"name":"f"}\n{"name":"g"} '), [call(0, "f"), call(1, "g")]),
    (tagged('[{"name":"f"}, {"name":"g"}]'), [call(0, "f"), call(1, "g")]),
    (tagged('{"name":"f"},{"name":"g"}'), [call(0, "f"), call(1, "g")]),
    # The end tag in a string is text.
    (
        tagged('{"name":"f","arguments":{"a":"</tool_call>\\"}</tool_call><tool_call>{","b":2}}'),
        [call(0, "f", '{"a":"</tool_call>\\"}</tool_call><tool_call>{","b":2}')],
    ),
    (
        tagged('{"arguments":{"a":"</tool_call>"},"name":"f"}'),
        [call(0, "f", '{"a":"</tool_call>"}')],
    ),
    (tagged('{"id":"</tool_call>","name":"f","x":"</tool_call>"}'), [call(0, "f")]),
    (tagged('{"name":"f","arguments":{"</tool_call>" :1}}'), [call(0, "f", '{"</tool_call>" :1}')]),
    (tagged('{"name":"f","arguments":{"a":"\\\\"}}'), [call(0, "f", '{"a":"\\\\"}')]),
    # Missing end tags.
    ('<tool_call>{"name":"f"}', [call(0, "f")]),
    ('<tool_call>{"name":"f"}\n\nSo be it.', [call(0, "f"), c("\n\nSo be it.")]),
    (
        '<tool_call>{"name":"f"}\n<tool_call>{"name":"g","arguments":{"a":1}}',
        [call(0, "f"), call(1, "g", '{"a":1}')],
    ),
    ('<tool_call>{"name":"f"<tool_call>{"name":"g"}', [call(0, "f"), call(1, "g")]),
    # Something behind the object.
    (tagged('{"name":"f","arguments":{"a":1}}} '), [call(0, "f", '{"a":1}')]),
    (tagged('{"name":"f"} and so'), [call(0, "f"), c(" and so")]),
    (tagged('{"name":"f"}}, {"x":1}') + "y", [call(0, "f"), c(', {"x":1}y')]),
    ('<tool_call>{"name":"f"} z</tool_call>1</tool_call>', [call(0, "f"), c(" z1</tool_call>")]),
    # What arguments may be.
    (tagged('{"name":"f","arguments":"{\\"a\\": \\"b\\\\n\\"}"}'), [call(0, "f", '{"a": "b\\n"}')]),
    (tagged('{"name":"f","arguments":"{\\"a\\": \\"b\\n\\"}"}'), [call(0, "f", '{"a": "b\\n"}')]),
    (tagged('{"name":"f","arguments":"{} x"}'), [call(0, "f", '"{} x"')]),
    (tagged('{"name":"f","arguments":"Rome"}'), [call(0, "f", '"Rome"')]),
    (tagged('{"name":"f","arguments":" "}'), [call(0, "f")]),
    (tagged('{"name":"f","arguments":null}'), [call(0, "f")]),
    (tagged('{"name":"f","arguments":null'), [call(0, "f")]),
    (tagged('{"name":"f","arguments":[1,2]}'), [call(0, "f", "[1,2]")]),
    (tagged('{"name":"f","arguments":-1.5e3}'), [call(0, "f", "-1.5e3")]),
    (tagged('{"name":"f","arguments":{"a":1},"parameters":{"b":2}}'), [call(0, "f", '{"a":1}')]),
    (
        tagged('{"name":"f","arguments":"{\\"a\\": \\"\\ud800\\"}"}'),
        [call(0, "f", '"{\\"a\\": \\"\\ud800\\"}"')],
    ),
]

NO_CALLS = [
    "<tool_call>not json</tool_call>",
    '<tool_call>{"foo": 1}</tool_call>',
    "<tool_call></tool_call>",
    "<tool_call> \n </tool_call>",
    "<tool_call>",
    "<tool_call>{",
    "<tool_call>[",
    "<tool_call>[[1]]</tool_call>",
    '<tool_call>{"name',
    '<tool_call>{"name": "f',
    '<tool_call>{"name": "f</tool_call>',
    '<tool_call>{"name": 1}</tool_call>',
    '<tool_call>{"name": " "}</tool_call>',
    '<tool_call>{"name": {"name": "f"}}</tool_call>',
    '<tool_call>{"name": "\\ud800"}</tool_call>',
    '<tool_call>{"name": "\\x"}</tool_call>',
    '<tool_call>{"arguments": {"name": "f"}}</tool_call>',
    '<tool_call>{"arguments": {"a": 1},</tool_call>',
    '<tool_call>{"a":}</tool_call>',
    "<tool_call>{'name': 'f'}</tool_call>",
    '<tool_call>{"arguments": {"a": "</tool_call>"}, "x": 1}</tool_call>',
    '{"name": "f"}',
    "a</tool_call>b",
    "<tool_call",
    "`<tool_call>`",
    "a < b <tool <tool_<tool_cal",
    "<tool_call><tool_call>\n</tool_call></tool_call>",
]

BROKEN = [
    # Cut off: what came, and nothing that makes it look whole.
    ('<tool_call>{"name":"f"', [call(0, "f", "")]),
    ('<tool_call>{"name":"f","argum', [call(0, "f", "")]),
    ('<tool_call>{"name":"f","arguments":', [call(0, "f", "")]),
    ('<tool_call>{"name":"f","arguments":{"a":"b', [call(0, "f", '{"a":"b')]),
    ('<tool_call>{"name":"f","arguments":"{\\"a\\":', [call(0, "f", '"{\\"a\\":')]),
    ('<tool_call>{"name":"f","arguments":{"a":"</tool', [call(0, "f", '{"a":"</tool')]),
    (
        '<tool_call>{"name":"f","arguments":{"a":"x</tool_call>y',
        [call(0, "f", '{"a":"x</tool_call>y')],
    ),
    # A tag outside of strings ends the call.
    (tagged('{"name":"f","arguments":{"a":1') + "x", [call(0, "f", '{"a":1'), c("x")]),
    (tagged('{"name":"f",') + "x", [call(0, "f"), c("x")]),
    (
        '<tool_call>{"name":"f","arguments":{"a":<tool_call>{"name":"g"}</tool_call>',
        [call(0, "f", '{"a":'), call(1, "g")],
    ),
    # A string that is never closed ends at the tag.
    (tagged('{"name":"f","arguments":{"a":"b}}'), [call(0, "f", '{"a":"b}}')]),
    (tagged('{"name":"f","arguments":{"a":"b}}') + "\n", [call(0, "f", '{"a":"b}}'), c("\n")]),
    (
        tagged('{"name":"f","arguments":{"a":"b}}', '{"name":"g","arguments":{"a":"b"}}'),
        [call(0, "f", '{"a":"b}}'), call(1, "g", '{"a":"b"}')],
    ),
    (
        tagged('{"name":"f","arguments":{"a":"</tool_call>","b":"c}}') + "\n",
        [call(0, "f", '{"a":"</tool_call>","b":"c}}'), c("\n")],
    ),
    (
        tagged('{"name":"f","arguments":{"a":"b</tool_call>"') + tagged('{"name":"g"}'),
        [call(0, "f", '{"a":"b</tool_call>"'), call(1, "g")],
    ),
    (
        tagged('{"name":"f","arguments":{"a":"b</tool_call>"') + tagged('{"x":1}'),
        [call(0, "f", '{"a":"b</tool_call>"'), c(tagged('{"x":1}'))],
    ),
    (
        tagged('{"name":"f","arguments":{"a":"b}}') + ' The "end".',
        [call(0, "f", '{"a":"b}}'), c(' The "end".')],
    ),
    (
        tagged('{"name":"f","arguments":{"a":"</tool_call>"'),
        [call(0, "f", '{"a":"</tool_call>"')],
    ),
    # What is wrong inside the arguments stays inside.
    (tagged("""{"name":"f","arguments":{'a': None,}}"""), [call(0, "f", "{'a': None,}")]),
    (tagged('{"name":"f","arguments":{"a":"say "hi" to"}}'), [call(0, "f", '{"a":"say "hi" to"}')]),
    (
        tagged('{"name":"f","arguments":{"a":"</tool_call>","b":"say "hi""}}'),
        [call(0, "f", '{"a":"</tool_call>","b":"say "hi""}')],
    ),
    # But for control characters in strings.
    (
        tagged('{"name":"f","arguments":{\n"a":"1\n\t2\\\n"}}'),
        [call(0, "f", '{\n"a":"1\\n\\t2\\\n"}')],
    ),
    # What is wrong outside of them ends the call.
    (tagged('{"name":"f" so "arguments":{}}'), [call(0, "f"), c('so "arguments":{}}')]),
    (tagged('{"name":"f","arguments":{}]'), [call(0, "f")]),
    # A call after something that is none.
    ('<tool_call>no <tool_call>{"name":"f"}</tool_call>', [c("<tool_call>no "), call(0, "f")]),
    ('<tool_call><tool_call>{"name":"f"}</tool_call>', [c("<tool_call>"), call(0, "f")]),
    (
        '<tool_call>{"name <tool_call>{"name":"f"}</tool_call>',
        [c('<tool_call>{"name '), call(0, "f")],
    ),
    (
        '<tool_call>{"name":"f"}</tool_call><tool_call>\n',
        [call(0, "f"), c("<tool_call>\n")],
    ),
    (
        '<tool_call>{"name":"f"}x<tool_call>y</tool_call>',
        [call(0, "f"), c("x<tool_call>y</tool_call>")],
    ),
]


@pytest.mark.parametrize(("text", "parts"), CALLS + BROKEN)
def test_calls(text: str, parts: list[tuple[object, ...]]) -> None:
    assert same_however_cut(HERMES.parser, text) == parts


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_comes_back_as_content(text: str) -> None:
    assert same_however_cut(HERMES.parser, text) == [c(text)]
    # Also next to a call.
    around = tagged('{"name":"f"}') + f" {text} "
    assert same_however_cut(HERMES.parser, around) == [call(0, "f"), c(f" {text} ")]


def test_calls_stream() -> None:
    # TAB-56, VLLM-66
    arguments = '{"city": "Rome, \\"old\\"", "days": [1, 2, {}]}'
    head = '<tool_call>\n{"name": "weather"'
    parser = HERMES.parser()
    shown = [parser.feed(char) for char in head]
    assert shown[-1] == [ToolCallDelta(0, name="weather")]
    assert not any(shown[:-1])
    assert not any(parser.feed(char) for char in ', "arguments": ')
    for char in arguments:
        assert parser.feed(char) == [ToolCallDelta(0, arguments=char)]
    assert not any(parser.feed(char) for char in "}\n</tool_call>")
    assert parser.feed("!") == [ContentDelta("!")]
    assert parser.finish() == []


def test_arguments_before_the_name_wait_for_it() -> None:
    parser = HERMES.parser()
    assert parser.feed('<tool_call>{"arguments": {"a": 1}, "name": "f') == []
    name, arguments = parser.feed('"')
    assert name == ToolCallDelta(0, name="f")
    assert arguments == ToolCallDelta(0, arguments='{"a": 1}')


def test_text_is_held_back_only_while_it_could_become_a_tag() -> None:
    parser = HERMES.parser()
    shown = ["".join(str(part[1]) for part in joined(parser.feed(char))) for char in "a <b <tool!"]
    assert shown == ["a", " ", "", "<b", " ", "", "", "", "", "", "<tool!"]
    # What is no call is let go as soon as that is certain.
    assert parser.feed("<tool_call>\n") == []
    assert parser.feed("n") == [ContentDelta("<tool_call>\nn")]


def test_a_long_argument_in_single_characters() -> None:
    arguments = json.dumps({"code": 'print("hi")\n' * 5_000, "path": "a.py"})
    text = f'<tool_call>{{"arguments": {arguments}, "name": "f"}}</tool_call>'
    assert run(HERMES.parser, text) == [call(0, "f", arguments)]
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert run(HERMES.parser, text) == [call(0, "f", arguments)]


def test_many_starts_that_lead_nowhere() -> None:
    for text in ('<tool_call>{"a":"' * 5_000, "<tool_call>[" * 5_000, tagged('{"a":1}') * 3_000):
        assert run(HERMES.parser, [text]) == [c(text)]


def test_depth_does_not_matter() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert run(HERMES.parser, [tagged(f'{{"name":"f","arguments":{deep}}}')]) == [
        call(0, "f", deep)
    ]
    wrapped = json.dumps('{"a":' + deep + "}")
    assert run(HERMES.parser, [tagged(f'{{"name":"f","arguments":{wrapped}}}')]) == [
        call(0, "f", wrapped)
    ]


def test_spans_are_those_of_the_description() -> None:
    (span,) = HERMES.spans
    assert (span.start, span.end) == ("<tool_call>", "</tool_call>")
    assert set(span.opens_with) == set("{[")
    assert HERMES.matches('... <tool_call>{"name": ...}</tool_call> ...')
    assert not HERMES.matches("... <tool_call><function=...></tool_call> ...")


def test_other_keys_and_no_end_tag() -> None:
    tools = JsonCalls("[CALLS]", "", name_keys=("tool_name", "name"), argument_keys=("args",))
    text = 'a[CALLS][{"tool_name":"f","args":{"name":"x"}}, {"name":"g"}]b'
    parts = [c("a"), call(0, "f", '{"name":"x"}'), call(1, "g"), c("b")]
    assert same_however_cut(tools.parser, text) == parts


def test_parsers_share_nothing() -> None:
    # VLLM-65
    one, other = HERMES.parser(), HERMES.parser()
    one.feed('<tool_call>{"name":"f"}')
    assert run(lambda: other, ['<tool_call>{"name":"g"}']) == [call(0, "g")]
