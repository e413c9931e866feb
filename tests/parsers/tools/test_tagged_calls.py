"""Every format whose arguments are JSON, as its models write it and as they get it wrong."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import ToolCallDelta, ToolFormat
from enginebay_parsers import REASONING, TOOLS
from enginebay_parsers.json.base import JsonFormat
from tests.effort import examples
from tests.parsers.cutting import Joined, Pipe, calls_of, content_of, cut, every_cut, joined, run
from tests.parsers.tools.written import ALL

FORMATS = {name: form for name, form in TOOLS.items() if isinstance(form, JsonFormat)}
TAGGED = [name for name in ALL if not ALL[name].first]

ARGUMENTS = [
    "{}",
    "{ }",
    '{"city": "Rome"}',
    '{"a": 1, "b": -2.5e-3, "c": true, "d": null, "e": []}',
    '{"a": {"b": {"c": [{"d": "}"}, "]", "{"]}}}',
    '{"quote": "she said \\"hi\\"", "path": "C:\\\\dir\\\\"}',
    '{"nested": "{\\"a\\": \\"{\\\\\\"b\\\\\\": 1}\\"}"}',
    '{"zip": "02134", "flag": "false", "none": "null"}',
    '{"text": "日本語 ü 🙂 \\ud83d\\ude42 \\u00e9"}',
    '{"é": {"日": "本"}}',
    '{"code": "for x in y:\\n\\tprint(f\\"{x}\\")\\n"}',
    '{"html": "<b>a</b> <!-- & --> <![CDATA[x]]>"}',
    '{"shell": "echo `date` && cat <<EOF > /dev/null"}',
    '{"markdown": "```python\\nprint()\\n```"}',
    '{"regex": "^\\\\[TOOL_[A-Z]+\\\\]$"}',
    '{"name": "name", "arguments": {"arguments": {}}, "parameters": 1}',
    '{\n  "spread": [\n    1,\n    2\n  ]\n}',
    '{"a":"","b":" ","c":"\\\\"}',
    '{"long": "' + "x" * 500 + '"}',
    '{"deep": ' + "[" * 60 + "]" * 60 + "}",
    '{"comma": "a, b; c", "brackets": "]}, {\\"name\\": \\"g\\"}]"}',
    '{"same": 1, "same": 2}',
]
NAMES = ["f", "get_weather", "mcp__files__read-all", "ns.tool", "größe", "f2"]


def parser_of(name: str) -> ToolFormat:
    return FORMATS[name]


def check(name: str, text: str, parts: Joined) -> None:
    """That a text comes out as these parts, cut where it matters."""
    form = FORMATS[name]
    assert run(form.parser, [text]) == parts
    assert run(form.parser, text) == parts
    for at in range(0, len(text), max(1, len(text) // 12)):
        assert run(form.parser, [text[:at], text[at:]]) == parts, at


def test_every_format_is_tested() -> None:
    assert set(ALL) == set(FORMATS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments_are_what_was_written(name: str, arguments: str) -> None:
    # TAB-50, VLLM-55, VLLM-57
    written = ALL[name]
    call = ("get_weather", arguments)
    check(name, written.text(call), written.parts(call))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("called", NAMES)
def test_names(name: str, called: str) -> None:
    written = ALL[name]
    check(name, written.text((called, "{}")), written.parts((called, "{}")))


@pytest.mark.parametrize("name", ALL)
def test_several_calls(name: str) -> None:
    # TAB-51, TAB-55, VLLM-56; complaint 4
    calls = [("f", '{"a": 1}'), ("f", "{}"), ("g", '{"b": "}"}')]
    written = ALL[name]
    check(name, written.text(*calls), written.parts(*calls))


@pytest.mark.parametrize("name", ALL)
def test_every_cut_gives_the_same_parts(name: str) -> None:
    # complaint 1
    written = ALL[name]
    calls = [("f", '{"a": "\\""}'), ("g", "{}")]
    text = written.text(*calls)
    for pieces in every_cut(text):
        assert run(FORMATS[name].parser, pieces) == written.parts(*calls), pieces


@pytest.mark.parametrize("name", ALL)
def test_arguments_stream_and_the_name_comes_once(name: str) -> None:
    # TAB-56, VLLM-53, VLLM-54, VLLM-64, VLLM-66, VLLM-67; complaint 1
    arguments = '{"city": "Rome", "days": [1, 2]}'
    parser = FORMATS[name].parser()
    shown = [parser.feed(char) for char in ALL[name].text(("weather", arguments))]
    deltas = [part for parts in [*shown, parser.finish()] for part in parts]
    assert all(isinstance(part, ToolCallDelta) for part in deltas)
    names = [part for part in deltas if isinstance(part, ToolCallDelta) and part.name is not None]
    assert [(part.index, part.name) for part in names] == [(0, "weather")]
    assert deltas[0] is names[0]
    assert len(deltas) > len(arguments) * 0.8
    text = "".join(part.arguments for part in deltas if isinstance(part, ToolCallDelta))
    assert text == arguments


@pytest.mark.parametrize("name", TAGGED)
def test_text_around_calls_is_content(name: str) -> None:
    written = ALL[name]
    call = ("f", '{"a": 1}')
    text = f"Let me see.{written.text(call)}Done, {{really}}."
    check(name, text, [("content", "Let me see."), *written.parts(call), ("content", text[-15:])])


@pytest.mark.parametrize("name", ALL)
def test_text_behind_calls_is_content(name: str) -> None:
    written = ALL[name]
    call = ("f", '{"a": 1}')
    check(name, written.text(call) + "So.", [*written.parts(call), ("content", "So.")])


@pytest.mark.parametrize("name", ALL)
def test_its_own_syntax_in_a_string_is_text(name: str) -> None:
    written = ALL[name]
    for piece in [*written.pieces(), *FORMATS[name].starts, written.text(("g", "{}"))]:
        calls = [("f", json.dumps({"a": piece, "b": [piece, 1]})), ("h", "{}")]
        check(name, written.text(*calls), written.parts(*calls))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("arguments", ARGUMENTS[2:9:2])
def test_cut_off_anywhere(name: str, arguments: str) -> None:
    """Nothing is lost and nothing is made up; what is no call yet is content."""
    written = ALL[name]
    text = written.text(("f", arguments), ("g", arguments))
    whole = calls_of(written.parts(("f", arguments), ("g", arguments)))
    for at in range(0, len(text), 2):
        parts = run(FORMATS[name].parser, [text[:at]])
        calls = calls_of(parts)
        for call, expected in zip(calls, whole, strict=False):
            assert call[:2] == expected[:2]
            assert str(expected[2]).startswith(str(call[2]))
        assert len(calls) <= 2
        if not calls:
            assert content_of(parts) in (text[:at], "")


@pytest.mark.parametrize("name", ALL)
def test_what_is_no_call_comes_back_as_content(name: str) -> None:
    # complaint 8
    written = ALL[name]
    whole = written.text(("f", '{"a": "b"}'))
    opening = whole[: whole.index("f")]
    broken = [
        opening,
        opening + "?",
        whole.replace("f", "", 1) if name != "functionary-v3.2" else "?",
        whole.replace("{", "", 1),
        whole.replace("{", "(").replace("}", ")"),
        opening + opening,
        written.before + "I will not." + written.after,
        *written.pieces(),
        *FORMATS[name].starts,
        FORMATS[name].opening + "x" + FORMATS[name].closing,
        "".join(FORMATS[name].starts),
    ]
    for text in broken:
        parts = run(FORMATS[name].parser, [text])
        assert parts == run(FORMATS[name].parser, text)
        if not calls_of(parts):
            assert content_of(parts) == text
    assert sum(not calls_of(run(FORMATS[name].parser, [text])) for text in broken) >= 6


@pytest.mark.parametrize("name", ALL)
def test_a_call_behind_something_that_is_none(name: str) -> None:
    if ALL[name].first:
        return
    written = ALL[name]
    call = ("f", "{}")
    for start in [*FORMATS[name].starts, FORMATS[name].opening]:
        text = f"{start} ?? {written.text(call)}"
        assert run(FORMATS[name].parser, text) == [
            ("content", f"{start} ?? "),
            *written.parts(call),
        ]


@pytest.mark.parametrize("name", ALL)
def test_a_function_that_was_not_offered(name: str) -> None:
    """It is a call, and the client can say so; but where calls have no tags, it is text."""
    written = ALL[name]
    text = written.text(("f", "{}"))
    form = FORMATS[name]
    offered = run(lambda: form.parser({"f": {}}), text)
    unknown = run(lambda: form.parser({"g": {}}), text)
    assert offered == written.parts(("f", "{}"))
    assert unknown == ([("content", text)] if form.bare else offered)


def fragments(name: str) -> st.SearchStrategy[str]:
    """Texts of what the format is made of, whole and broken, and of what it is not."""
    written, form = ALL[name], FORMATS[name]
    tags = [*form.starts, form.end, form.opening, form.closing, *written.pieces()]
    broken = [text[a:b] for text in tags for a, b in ((0, -1), (1, None), (0, 2), (2, -1))]
    return st.one_of(
        st.sampled_from(tags),
        st.sampled_from(broken),
        st.sampled_from(
            ["f", "g_2", "all", "function", "a b", "\n", " ", "`", "```json", "é", "🙂"]
        ),
        st.sampled_from(['{"name": "f"', ', "arguments": ', '{"a": "b"}', "{", "}", "[", "]", '"']),
        st.sampled_from([":", ",", "\\", '"x"', "null", "1", written.text(("f", '{"a": 1}'))]),
        st.text(max_size=3),
    )


@pytest.mark.parametrize("name", ALL)
@examples(50)
@given(data=st.data())
def test_any_text_cut_anywhere(name: str, data: st.DataObject) -> None:
    texts = st.lists(fragments(name), max_size=20).map("".join)
    pieces = data.draw(cut(texts))
    text = "".join(pieces)
    form = FORMATS[name]
    parts = run(form.parser, pieces)
    assert parts == run(form.parser, [text]) == run(form.parser, text)
    calls = calls_of(parts)
    assert [call[0] for call in calls] == list(range(len(calls)))
    assert all(isinstance(call[1], str) and call[1] for call in calls)
    ids = [call[3] for call in calls if len(call) == 4]
    assert len(set(ids)) == len(ids)
    if not calls and not re.search(r"all *\n", text):
        assert content_of(parts) == text
    chars = iter(text)
    assert all(char in chars for char in content_of(parts))


@pytest.mark.parametrize("name", ALL)
@examples(30)
@given(data=st.data())
def test_what_was_shown_is_a_beginning_of_what_comes(name: str, data: st.DataObject) -> None:
    text = data.draw(st.lists(fragments(name), max_size=20).map("".join))
    parser = FORMATS[name].parser()
    shown = joined([part for char in text for part in parser.feed(char)])
    whole = run(FORMATS[name].parser, [text])
    assert len(shown) <= len(whole)
    assert shown[:-1] == whole[: max(len(shown) - 1, 0)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ALL)
@examples(20)
@given(data=st.data())
def test_any_calls(name: str, data: st.DataObject) -> None:
    names = st.from_regex(r"[a-z_][a-z0-9_.\-]{0,11}", fullmatch=True)
    arguments = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
    calls = data.draw(st.lists(st.tuples(names, arguments), min_size=1, max_size=3))
    written = ALL[name]
    spelled = [
        (called, json.dumps(value, ensure_ascii=False))
        for called, value in calls
        if called != "all"
    ]
    if spelled:
        pieces = data.draw(cut(st.just(written.text(*spelled))))
        assert run(FORMATS[name].parser, pieces) == written.parts(*spelled)


@pytest.mark.parametrize("name", ALL)
def test_behind_thought(name: str) -> None:
    # VLLM-58, VLLM-59, VLLM-61; complaint 6
    said = "x" if ALL[name].first else "</think>"
    calls = [("f", json.dumps({"a": said})), ("g", "{}")]
    text = f"<think>hm</think>{ALL[name].text(*calls)}"
    for pieces in ([text], text):
        parts = run(lambda: Pipe(REASONING["think"], FORMATS[name], inside=False), pieces)
        assert parts == [("reasoning", "hm"), *ALL[name].parts(*calls)]


ENDED = [name for name in TAGGED if FORMATS[name].end and name != "command-r"]


@pytest.mark.parametrize("name", ENDED)
def test_inside_thought(name: str) -> None:
    # TAB-69, TAB-70; complaint 6
    calls = [("f", '{"a": "</think>"}'), ("g", "{}")]
    text = f"<think>a{ALL[name].text(*calls)}b</think>c"
    thought = [("reasoning", "a"), *ALL[name].parts(*calls), ("reasoning", "b"), ("content", "c")]
    for pieces in ([text], text):
        parts = run(lambda: Pipe(REASONING["think"], FORMATS[name], inside=False), pieces)
        assert parts == thought
