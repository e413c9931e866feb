"""Tool calls whose arguments stand between tags: every format of the family, the same samples."""

import json
from collections.abc import Mapping
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import ContentDelta, Schemas, ToolCallDelta
from enginebay_parsers import REASONING, TOOLS
from tests.effort import examples
from tests.parsers.cutting import (
    Joined,
    Pipe,
    calls_of,
    content_of,
    cut,
    run,
    same_however_cut,
)
from tests.parsers.tools.values import keys, names, scalars, schemas_of, values
from tests.parsers.tools.xml_writers import BY_NAME, WRITERS, Writer

FORMATS = {name: TOOLS[name] for name in BY_NAME}
SAY_TYPES = ("deepseek-v3.2", "deepseek-v4", "kimi-k3")
STRING = {"type": "string"}
TYPES: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "s": STRING,
        "t": STRING,
        "i": {"type": "integer"},
        "n": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "z": {"anyOf": [STRING, {"type": "null"}]},
    },
}
SCHEMAS: Schemas = {"f": TYPES, "g": TYPES}

each_format = pytest.mark.parametrize("w", WRITERS, ids=lambda w: w.name)


def c(text: str) -> tuple[str, str]:
    return ("content", text)


def call(index: int, name: str, arguments: str = "{}") -> tuple[object, ...]:
    return ("call", index, name, arguments)


def parts_of(w: Writer, text: str, schemas: Schemas | None = SCHEMAS) -> Joined:
    make = partial(FORMATS[w.name].parser, schemas)
    if len(text) <= 60:
        return same_however_cut(make, text)
    whole = run(make, [text])
    for size in (1, 2, 3, 5, 8, 13):
        assert run(make, [text[at : at + size] for at in range(0, len(text), size)]) == whole
    return whole


def raw(w: Writer, key: str, text: str) -> str:
    """An argument with exactly this text for a value, whatever it looks like."""
    return w.parameter(key, "VALUE").replace("VALUE", text)


def in_block(w: Writer, body: str) -> str:
    return f"{w.block}{w.space}{body}{w.space}{w.block_end}" if w.block else body


def around(w: Writer, *parameters: str, name: str = "f") -> str:
    """A call of these written arguments."""
    return in_block(w, w.space.join([w.begin(name), *parameters, w.call_end]))


WELL_FORMED: list[tuple[str, dict[str, object]]] = [
    ("nothing", {}),
    ("one", {"s": "Rome"}),
    ("each type", {"s": "x", "i": 5, "n": -1.5e3, "b": True, "o": {"a": [None]}, "l": [1, "2"]}),
    # Complaint 5: a string stays one.
    ("digits", {"s": "02134", "t": "5"}),
    ("words", {"s": "false", "t": "null"}),
    ("JSON in a string", {"s": '{"a": 1}', "t": "[1, 2]"}),
    ("quotes", {"s": 'say "hi"', "t": "it's \\ and \\n"}),
    ("nested quotes", {"o": {"a": 'b "c" \\"', "d": ["'", '"']}}),
    ("code", {"s": 'def f(a):\n\tif a < 1 and a > 2:\n        print("&amp; <b>")\n'}),
    ("blank lines", {"s": "\n\na\n\n", "t": "\n"}),
    ("spaces", {"s": "  a  ", "t": " "}),
    ("empty", {"s": "", "t": "x"}),
    ("unicode", {"s": "日本 é 🙂 \u2028", "o": {"ключ": "значение"}}),
    ("control characters", {"s": "a\x00b\x1f\x7f\t"}),
    ("null or a string", {"z": None}),
    ("a string or null", {"z": "nulls"}),
    ("a large number", {"i": 12345678901234567890123, "n": 0.1}),
    ("pieces of tags", {"s": "</ <p </param <tool_ <| < </function", "t": "<｜DSML｜"}),
    ("other formats' tags", {"s": '<invoke name="x"><arg_key>k</arg_key>[TOOL_CALLS]</x>'}),
    ("thought", {"s": "<think>hm</think>"}),
]


@each_format
@pytest.mark.parametrize(("_", "arguments"), WELL_FORMED, ids=lambda value: str(value)[:20])
def test_well_formed(w: Writer, _: str, arguments: dict[str, object]) -> None:
    # TAB-50, TAB-54, MLC-22
    ((index, name, written),) = calls_of(parts_of(w, w.write(("f", arguments))))
    assert (index, name) == (0, "f")
    assert json.loads(str(written)) == arguments
    if "\n" not in arguments.values():
        compact = w.write(("f", arguments)).replace(">\n<", "><")
        assert calls_of(parts_of(w, compact)) == [(0, "f", written)]


@each_format
def test_several_calls(w: Writer) -> None:
    # TAB-51, TAB-55; complaint 4
    text = w.write(("f", {"s": "a"}), ("g", {}), ("f", {"i": 1}))
    assert calls_of(parts_of(w, text)) == [
        (0, "f", '{"s": "a"}'),
        (1, "g", "{}"),
        (2, "f", '{"i": 1}'),
    ]
    assert content_of(parts_of(w, text)).strip() == ""


@each_format
def test_text_around_calls(w: Writer) -> None:
    text = f"Let me see.\n{w.write(('f', {'s': 'a'}))}\nSo."
    assert parts_of(w, text) == [c("Let me see.\n"), call(0, "f", '{"s": "a"}'), c("\nSo.")]


@each_format
@pytest.mark.parametrize(
    ("key", "text", "json_text"),
    [
        ("i", " 5\n", "5"),
        ("i", "five", '"five"'),
        ("i", '"5"', "5"),
        ("i", "", '""'),
        ("n", "1.50", "1.50"),
        ("n", "NaN", '"NaN"'),
        ("n", "007", '"007"'),
        ("b", "True", "true"),
        ("b", "false", "false"),
        ("b", "yes", '"yes"'),
        ("o", "{'a': None, 'b': (1, 2)}", '{"a": null, "b": [1, 2]}'),
        ("o", '{"a": 1', '"{\\"a\\": 1"'),
        ("l", '["a", "b"]', '["a", "b"]'),
        ("l", '"[1, 2]"', "[1, 2]"),
        ("l", "[" * 30 + "]" * 30, "[" * 30 + "]" * 30),
        ("z", "None", "null"),
        ("z", "nullable", '"nullable"'),
        ("z", "5", '"5"'),
        ("s", "5", '"5"'),
        ("s", "None", '"None"'),
    ],
)
def test_values_have_the_type_of_the_schema(w: Writer, key: str, text: str, json_text: str) -> None:
    # Complaint 5
    if text == "None" and w.name in SAY_TYPES and key == "z":
        json_text = '"None"'  # The model has said that this is a string.
    parts = parts_of(w, around(w, raw(w, key, text)))
    assert parts == [call(0, "f", f'{{"{key}": {json_text}}}')]


@each_format
def test_without_a_schema_values_are_text_unless_the_format_says_otherwise(w: Writer) -> None:
    text = w.write(("f", {"s": "5", "i": 5, "l": [True]}))
    ((_, _, written),) = calls_of(parts_of(w, text, None))
    typed = {"s": "5", "i": 5, "l": [True]}
    plain = {"s": "5", "i": "5", "l": "[true]"}
    assert json.loads(str(written)) == (typed if w.name in SAY_TYPES else plain)


NO_CALLS = [
    "{block}",
    "{block}\n",
    "{block}\n no",
    "{block}{block_end}",
    "{block_end}",
    "{call_end}",
    "{parameter_end}",
    "{block}{parameter_end}",
    "`{call}`",
    "{block}{call_cut}",
    "{call_cut}",
    "{block_cut}",
    '{block}{{"name": "f", "arguments": {{}}}}{block_end}',
    "{block}{call_without_name}",
    "a < b </ <tool <function <|open|",
    "",
]


@each_format
@pytest.mark.parametrize("sample", NO_CALLS)
def test_what_is_no_call_comes_back_as_content(w: Writer, sample: str) -> None:
    # Complaint 8
    text = sample.format(
        block=w.block,
        block_end=w.block_end,
        block_cut=w.block[:-1],
        call=w.begin("f"),
        call_cut=w.begin("f")[:-1],
        call_end=w.call_end,
        call_without_name=w.begin(""),
        parameter_end=w.parameter_end,
    )
    assert parts_of(w, text) == ([c(text)] if text else [])


@each_format
def test_a_call_that_is_cut_off_keeps_what_came_and_does_not_look_whole(w: Writer) -> None:
    arguments: dict[str, object] = {"s": "one two", "i": 12, "t": "three"}
    text = w.write(("f", arguments))
    make = FORMATS[w.name].parser
    whole = json.dumps(arguments)
    for end in range(len(text)):
        parts = run(lambda: make(SCHEMAS), [text[:end]])
        assert parts == run(lambda: make(SCHEMAS), text[:end])
        calls = calls_of(parts)
        if not calls:
            assert content_of(parts) == text[:end]
            continue
        ((_, name, written),) = calls
        assert name == "f"
        assert content_of(parts) == ""
        if written != whole:
            # Only a value may be followed by a piece of the tag that would have ended it.
            head = str(written)
            assert whole.startswith(head) or head.startswith(
                (
                    '{"s": "one two',
                    '{"s": "one two", "i": 12',
                    '{"s": "one two", "i": 12, "t": "three',
                )
            )
            with pytest.raises(json.JSONDecodeError):
                json.loads(head)
        else:
            assert w.call_end in text[:end]


@each_format
def test_an_end_tag_in_a_value_is_text(w: Writer) -> None:
    for inner in (
        f"a{w.parameter_end}b",
        f"{w.parameter_end}{w.parameter_end} x",
        f"`{w.parameter_end}`",
        f"a{w.call_end}b",
        f"a{w.block_end}b",
        f"{w.begin('g')}",
    ):
        if w.name == "minicpm" and w.parameter_end in inner:
            inner = f"<![CDATA[{inner}]]>"
            text = around(w, f'<param name="s">{inner}</param>')
            inner = inner.removeprefix("<![CDATA[").removesuffix("]]>")
        else:
            text = around(w, raw(w, "s", inner))
        assert parts_of(w, text) == [call(0, "f", json.dumps({"s": inner}, ensure_ascii=False))]


@each_format
def test_missing_and_superfluous_ends(w: Writer) -> None:
    s = w.parameter("s", "a")
    begin = f"{w.block}{w.begin('f')}"
    one = call(0, "f", '{"s": "a"}')
    # The block ends, or the next call begins, before the call does.
    if w.block:
        assert parts_of(w, f"{begin}{s}{w.block_end}b") == [one, c("b")]
        assert parts_of(w, f"{begin}{s}{w.call_end}") == [one]
        assert parts_of(w, f"{begin}{s}{w.call_end} b{w.block_end}") == [one, c(" b")]
    assert parts_of(w, f"{begin}{s}{begin}{w.call_end}") == [one, call(1, "g" if 0 else "f")]
    # Something that belongs to nothing ends the call; the tags that end it are not shown.
    text = f"{begin}{s}{w.parameter_end}!{w.call_end}{w.block_end}."
    parts = parts_of(w, text)
    assert calls_of(parts)[0][:2] == (0, "f")
    broken = f"{begin} so {s}"
    assert parts_of(w, broken)[-1] == c(f"so {s}") or not calls_of(parts_of(w, broken))


@each_format
def test_calls_stream(w: Writer) -> None:
    # TAB-56, VLLM-66; complaints 1 and 2
    parser = FORMATS[w.name].parser(SCHEMAS)
    head = f"{w.block}{w.begin('f')}"
    first, _, _ = w.parameter("s", "VALUE").partition("VALUE")
    shown = [part for char in f"{head}{first}" for part in parser.feed(char)]
    assert shown[0] == ToolCallDelta(0, name="f")
    # The space comes with what follows where white space may belong to the end of the value.
    said = [parser.feed(f"{word} ") for word in ("one", '"two"', "three")]
    assert all(said)
    arguments = [*shown[1:], *(part for parts in said for part in parts)]
    written = "".join(part.arguments or "" for part in arguments if isinstance(part, ToolCallDelta))
    assert '{"s": "one \\"two\\" three '.startswith(written)
    assert len(written) >= len('{"s": "one \\"two\\" three')


@each_format
def test_text_is_held_back_only_while_it_could_become_a_call(w: Writer) -> None:
    parser = FORMATS[w.name].parser()
    assert parser.feed("a") == [ContentDelta("a")]
    opening = w.block or w.begin("")[:5]
    assert not parser.feed(opening)
    assert parser.feed(" no <b") == [ContentDelta(f"{opening} no <b")] or w.name == "glm"
    text = "".join(part.text for part in parser.finish() if isinstance(part, ContentDelta))
    assert text in ("", f"{opening} no <b", "<b")


@each_format
def test_parsers_share_nothing(w: Writer) -> None:
    # VLLM-65
    tools = FORMATS[w.name]
    one, other = tools.parser(SCHEMAS), tools.parser(SCHEMAS)
    one.feed(f"{w.block}{w.begin('f')}")
    assert run(lambda: other, [w.write(("g", {}))]) == [call(0, "g")]


@each_format
def test_ids_are_unique(w: Writer) -> None:
    ids = {FORMATS[w.name].new_call_id() for _ in range(100)}
    assert len(ids) == 100


@each_format
def test_long_texts(w: Writer) -> None:
    """What takes more than linear time does not end within the time limit of the suite."""
    make = FORMATS[w.name].parser
    code = 'print("<hi>")\n' * 20_000
    text = w.write(("f", {"s": code}))
    assert run(lambda: make(SCHEMAS), [text]) == [call(0, "f", json.dumps({"s": code}))]
    for nothing in filter(None, (w.block, w.begin("f")[:-1], "<" * 9, w.parameter_end)):
        many = nothing * 10_000
        assert content_of(run(lambda: make(SCHEMAS), [many])) == many
        assert content_of(run(lambda: make(SCHEMAS), many[:10_000])) == many[:10_000]
    for long in (
        text[:10_000],
        f"{w.block}{w.begin('f' * 5_000)}",
        f"{w.block}{' ' * 5_000}{w.begin('f')}",
        around(w, raw(w, "s", w.parameter_end * 500)),
        around(w, raw(w, "i", "5" * 5_000)),
        around(w, raw(w, "z", "\n" * 5_000)),
    ):
        assert run(lambda: make(SCHEMAS), [long]) == run(lambda: make(SCHEMAS), long)


def in_pipe(w: Writer, text: str) -> Joined:
    """Behind a parser of thought, which begins inside it."""
    return same_however_cut(lambda: Pipe(REASONING["think"], FORMATS[w.name], inside=True), text)


@each_format
def test_thought_around_calls_and_in_them(w: Writer) -> None:
    # TAB-69, TAB-70; complaint 6
    one = w.write(("f", {"s": "a"}))
    arguments = '{"s": "a"}'
    assert in_pipe(w, f"hm</think>{one}") == [("reasoning", "hm"), call(0, "f", arguments)]
    assert in_pipe(w, f"hm {one} so</think>ok") == [
        ("reasoning", "hm "),
        call(0, "f", arguments),
        ("reasoning", " so"),
        c("ok"),
    ]
    text = w.write(("f", {"s": "</think>"}))
    assert in_pipe(w, f"hm</think>{text}") == [
        ("reasoning", "hm"),
        call(0, "f", '{"s": "</think>"}'),
    ]


@each_format
def test_thought_about_tags(w: Writer) -> None:
    head = w.block or w.call.partition("NAME")[0]
    for thought in (
        f"use {head} now",
        f"use {head}, `{head}` or ({head}).",
        f"write '{w.begin('f')}' or not",
        f"end {head}",
        f"end {head} f",
    ):
        assert in_pipe(w, f"{thought}</think>ok") == [("reasoning", thought), c("ok")]


def texts(w: Writer) -> st.SearchStrategy[str]:
    """Texts of tags, pieces of tags, calls and prose."""
    s, i = w.parameter("s", "x"), w.parameter("i", 5)
    tags = [w.block, w.block_end, w.begin("f"), w.call_end, w.parameter_end, s, i]
    tags.append(w.parameter("z", "VALUE").partition("VALUE")[0])
    pieces = [tag[a:b] for tag in tags for a, b in ((0, -1), (1, None), (0, 2))]
    fragment = st.one_of(
        st.sampled_from(tags),
        st.sampled_from(pieces),
        st.sampled_from(["\n", " ", "null", "5", "{", '"', "`", "<", "é", "🙂"]),
        st.just(w.write(("f", {"s": "a", "i": 1}))),
        st.text(max_size=3),
    )
    return st.lists(fragment, max_size=20).map("".join)


@each_format
@examples(60)
@given(data=st.data())
def test_any_text_however_cut(w: Writer, data: st.DataObject) -> None:
    # VLLM-61, VLLM-64, VLLM-67
    make = FORMATS[w.name].parser
    pieces = data.draw(cut(texts(w)))
    text = "".join(pieces)
    parts = run(lambda: make(SCHEMAS), pieces)
    assert parts == run(lambda: make(SCHEMAS), [text]) == run(lambda: make(SCHEMAS), text)
    calls = calls_of(parts)
    assert [index for index, _, _ in calls] == list(range(len(calls)))
    assert all(isinstance(name, str) and name for _, name, _ in calls)
    if not calls:
        assert content_of(parts) == text
    chars = iter(text)
    assert all(char in chars for char in content_of(parts))
    # Whatever follows a call, all but the last are whole.
    for _, _, arguments in calls[:-1]:
        json.loads(str(arguments))


@each_format
@examples(30)
@given(data=st.data(), inside=st.booleans())
def test_pipe(w: Writer, data: st.DataObject, inside: bool) -> None:
    # TAB-59, TAB-60
    thought = st.sampled_from(["<think>", "</think>", "hm"])
    pieces = data.draw(cut(st.lists(texts(w) | thought, max_size=4).map("".join)))
    tags, tools = REASONING["think"], FORMATS[w.name]
    text = "".join(pieces)
    parts = run(lambda: Pipe(tags, tools, inside=inside), pieces)
    assert parts == run(lambda: Pipe(tags, tools, inside=inside), [text])
    assert parts == run(lambda: Pipe(tags, tools, inside=inside), text)


@each_format
@examples(25)
@given(data=st.data())
def test_calls_come_back_exactly(w: Writer, data: st.DataObject) -> None:
    # TAB-51, TAB-55
    many = st.dictionaries(keys, scalars | values, max_size=4)
    written = data.draw(st.dictionaries(names, many, min_size=1, max_size=3))
    if w.name == "minicpm":
        # Only CDATA sections and tags that follow end its values: no more can be written.
        written = {
            name: {key: value for key, value in each.items() if "]]>" not in str(value)}
            for name, each in written.items()
        }
    calls = list(written.items())
    pieces = data.draw(cut(st.just(w.write(*calls))))
    parts = run(lambda: FORMATS[w.name].parser(schemas_of(*calls)), pieces)
    found = [(name, json.loads(str(text))) for _, name, text in calls_of(parts)]
    assert found == calls
    assert content_of(parts).strip() == ""
