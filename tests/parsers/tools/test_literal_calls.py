"""Tool calls in the manner of Python, and their literals."""

import ast
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from enginebay import Schemas, ToolCallDelta
from enginebay_parsers import TOOLS
from enginebay_parsers.arguments.typed_value import python_literal
from enginebay_parsers.python.literal_calls import LiteralCalls
from tests.effort import examples
from tests.parsers.cutting import Joined, calls_of, content_of, cut, run, same_however_cut
from tests.parsers.tools.values import names, values

FORMATS = {name: tools for name, tools in TOOLS.items() if isinstance(tools, LiteralCalls)}
PYTHONIC = {name: tools for name, tools in FORMATS.items() if tools.separator == "="}
PYTHON, GEMMA = FORMATS["pythonic"], FORMATS["gemma"]
SCHEMAS: Schemas = {
    name: {"type": "object", "properties": {"a": {}, "b": {}}} for name in ("f", "g", "ns.f")
}


def c(text: str) -> tuple[str, str]:
    return ("content", text)


def call(index: int, name: str, arguments: str = "{}") -> tuple[object, ...]:
    return ("call", index, name, arguments)


def parts_of(tools: LiteralCalls, text: str, schemas: Schemas | None = SCHEMAS) -> Joined:
    return same_however_cut(lambda: tools.parser(schemas), text)


ARGUMENTS = [
    ("", "{}"),
    (" ", "{}"),
    ("a='x'", '{"a": "x"}'),
    ('a="x", b=1', '{"a": "x", "b": 1}'),
    ("a = None , b = True,", '{"a": null, "b": true}'),
    ("a=null, b=false", '{"a": null, "b": false}'),
    ("a=[1, {'k': None}], b=()", '{"a": [1, {"k": null}], "b": []}'),
    ("a=(1,), b=(1)", '{"a": [1], "b": 1}'),
    ("a={'b': {'c': [[]]}, 2: 'd', None: 3}", '{"a": {"b": {"c": [[]]}, "2": "d", "null": 3}}'),
    ("a=- 1, b=+2", '{"a": -1, "b": 2}'),
    ("a=-1.5e3, b=1_000", '{"a": -1.5e3, "b": 1000}'),
    ("a=.5, b=0x1F", '{"a": 0.5, "b": 31}'),
    # Complaint 5: what is no number in Python is text.
    ("a=02134, b=2024-01-01", '{"a": "02134", "b": "2024-01-01"}'),
    # Quotes and escapes.
    ('a=\'say "hi"\', b="it\'s"', '{"a": "say \\"hi\\"", "b": "it\'s"}'),
    (r"a='it\'s', b='\\n\n\x41\u00e9\101'", '{"a": "it\'s", "b": "\\\\n\\nAéA"}'),
    (r"a='\d+\.', b='\N{BULLET}\N{no}\z'", '{"a": "\\\\d+\\\\.", "b": "•\\\\N{no}\\\\z"}'),
    ("a='''x'y''z''', b=\"\"\"\n\"\"\"", '{"a": "x\'y\'\'z", "b": "\\n"}'),
    ("a='', b=\"\"", '{"a": "", "b": ""}'),
    ("a='one ' 'two' \"three\"", '{"a": "one twothree"}'),
    ("a=('one '\n   'two')", '{"a": "one two"}'),
    ("a='x)', b='], [g(', ", '{"a": "x)", "b": "], [g("}'),
    ("a='日本 🙂', b='\\ud83d\\ude42'", '{"a": "日本 🙂", "b": "\\ud83d\\ude42"}'),
    # As some templates write strings: without escapes.
    ("a='it's', b='say 'hi' to'", '{"a": "it\'s", "b": "say \'hi\' to"}'),
    ("a='1\n2'", '{"a": "1\\n2"}'),
    # What is no literal becomes text.
    ("a=Rome, b=today('x', [1])", '{"a": "Rome", "b": "today(\'x\', [1])"}'),
    ("a=New York, b=10:30", '{"a": "New York", "b": "10:30"}'),
    # Without names, in the order of the schema.
    ("'x', 2", '{"a": "x", "b": 2}'),
    ("True, b=[]", '{"a": true, "b": []}'),
]


@pytest.mark.parametrize("tools", PYTHONIC.values(), ids=PYTHONIC)
@pytest.mark.parametrize(("arguments", "json_text"), ARGUMENTS)
def test_arguments(tools: LiteralCalls, arguments: str, json_text: str) -> None:
    # MLC-23, TAB-50
    text = f"{tools.start}[f({arguments})]{tools.end}"
    assert parts_of(tools, text) == [call(0, "f", json_text)]
    json.loads(json_text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("f(a=1)", [call(0, "f", '{"a": 1}')]),
        ("f()", [call(0, "f")]),
        ("\n f(a='x)', b=[1]) \n", [c("\n "), call(0, "f", '{"a": "x)", "b": [1]}')]),
        ("ns.f('x')", [call(0, "ns.f", '{"a": "x"}')]),
        ("[f(a=1), g()]", [call(0, "f", '{"a": 1}'), call(1, "g")]),
        ("f(a=1) does it", [c("f(a=1) does it")]),
        ("f(a=1)\ng()", [c("f(a=1)\ng()")]),
        ("f(a=1), g()", [c("f(a=1), g()")]),
        ("f(a, b)", [c("f(a, b)")]),  # how it is declared, not a call
        ("f(a=Rome)", [c("f(a=Rome)")]),
        ("f(a=1", [c("f(a=1")]),
        ("f(a=']", [c("f(a=']")]),
        ("f(]", [c("f(]")]),
        ("f", [c("f")]),
        ("ff(a=1)", [c("ff(a=1)")]),
        ("h(a=1)", [c("h(a=1)")]),
        ("So: f(a=1)", [c("So: f(a=1)")]),
        (
            "f(a=1) <|python_start|>[g()]<|python_end|>",
            [c("f(a=1) "), call(0, "g")],
        ),
    ],
)
def test_a_call_by_itself(text: str, parts: Joined) -> None:
    # FIX-12 MLC-23
    assert parts_of(PYTHON, text) == parts
    if "<" not in text and "[f" not in text:
        for other in (None, {}):  # no function is known to be offered
            assert content_of(parts_of(PYTHON, text, other)) == text


@given(data=st.data())
@examples(60)
def test_a_call_by_itself_comes_back_exactly(data: st.DataObject) -> None:
    # FIX-12
    arguments = data.draw(st.dictionaries(st.sampled_from("ab"), values, max_size=2))
    written = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    text = data.draw(st.sampled_from(["", "\n"])) + f"f({written})"
    pieces = data.draw(cut(st.just(text)))
    [found] = calls_of(run(lambda: PYTHON.parser(SCHEMAS), pieces))
    assert (found[1], json.loads(str(found[2]))) == ("f", arguments)


@pytest.mark.parametrize("tools", PYTHONIC.values(), ids=PYTHONIC)
def test_several_calls(tools: LiteralCalls) -> None:
    # TAB-51, TAB-55; complaint 4
    expected = [call(0, "f", '{"a": 1}'), call(1, "ns.f"), call(2, "g", '{"b": "x"}')]
    for text in (
        "[f(a=1), ns.f(), g(b='x')]",
        "[f(a=1),ns.f(),g(b='x'),]",
        "\n[ f(a=1)\n, ns.f() , g(b='x') ]\n",
        "f(a=1)\nns.f()\ng(b='x')",
        "f(a=1); ns.f(); g(b='x')\n",
    ):
        got = parts_of(tools, f"{tools.start}{text}{tools.end}")
        assert got == expected, text
    both = f"x{tools.start}[f()]{tools.end} {tools.start}g(){tools.end}y"
    assert parts_of(tools, both) == [c("x"), call(0, "f"), c(" "), call(1, "g"), c("y")]


BARE = [
    ("[f(a='x')]", [call(0, "f", '{"a": "x"}')]),
    ("\n [f(), g(b=1)]", [c("\n "), call(0, "f"), call(1, "g", '{"b": 1}')]),
    ("[f()]\nDone.", [call(0, "f"), c("\nDone.")]),
    ("[f() and so", [call(0, "f"), c(" and so")]),
    ("[f(x), g()]", [call(0, "f", "{"), c("x), g()]")]),
    # Only at the beginning, and only functions that are offered.
    ("I call [f(a=1)]", [c("I call [f(a=1)]")]),
    ("[h(a=1)]", [c("[h(a=1)]")]),
    ("f(a=1).", [c("f(a=1).")]),
    ("[f](a)", [c("[f](a)")]),
    ("[1, 2]", [c("[1, 2]")]),
    ("[", [c("[")]),
    ("[f", [c("[f")]),
    ("", []),
    ("[f()][g()]", [call(0, "f"), c("[g()]")]),
    ("<|python_start|>[h(a=1)]<|python_end|>", [call(0, "h", '{"a": 1}')]),
]


@pytest.mark.parametrize(("text", "parts"), BARE)
def test_a_bare_list(text: str, parts: Joined) -> None:
    schemas: Schemas = {"f": {}, "g": {}}
    assert parts_of(PYTHON, text, schemas) == parts


@pytest.mark.parametrize("tools", FORMATS.values(), ids=FORMATS)
def test_what_is_no_call_comes_back_as_content(tools: LiteralCalls) -> None:
    # Complaint 8
    for text in (
        tools.start,
        tools.end,
        tools.start[:-1],
        f"{tools.start}{tools.end}",
        f"{tools.start}\n no {tools.end}",
        f"{tools.start}[f]{tools.end}",
        f"{tools.start}[1, 2]{tools.end}",
        f'{tools.start}{{"name": "f"}}{tools.end}',
        f"{tools.start}[f",
        f"{tools.start}call:",
        f"{tools.start} (a=1)",
        f"`{tools.start}`",
        "a < b <| <f",
    ):
        assert parts_of(tools, text) == [c(text)], text


@pytest.mark.parametrize("tools", PYTHONIC.values(), ids=PYTHONIC)
def test_broken_calls(tools: LiteralCalls) -> None:
    start, end = tools.start, tools.end
    for inner, arguments in (
        ("f(a=", '{"a": '),
        ("f(", "{"),
        ("f(a='x", '{"a": "x'),
        ("f(a=12", '{"a": 12'),
        ("f(a=[1, ", '{"a": [1'),
        ("f(a='x'", '{"a": "x"'),
    ):
        assert parts_of(tools, f"{start}{inner}") == [call(0, "f", arguments)], inner
    for inner, arguments, content in (
        ("f(a=1", '{"a": 1', ""),
        ("f(a=[1,,2])", '{"a": [1', ",2])"),
        ("f(a={1})", '{"a": {"1"', "})"),
        ("f(a=)", '{"a": ', ")"),
        ("f(a=1]", '{"a": 1', "]"),
        ("f(a=(", '{"a": ', ""),
        ("f() so", "{}", " so"),
    ):
        parts = parts_of(tools, f"{start}{inner}{end}.")
        assert parts == [call(0, "f", arguments), c(f"{content}.")], inner
    # Tags in strings are text.
    text = f"{start}f(a='{end}{start}g()'){end}"
    assert parts_of(tools, text) == [call(0, "f", json.dumps({"a": f"{end}{start}g()"}))]


GEMMA_CALLS = [
    ("{}", "{}"),
    ('{k:<|"|>v<|"|>}', '{"k": "v"}'),
    ('{k:<|"|>v<|"|>,n:5,b:true}', '{"k": "v", "n": 5, "b": true}'),
    ("{z:null,x:None}", '{"z": null, "x": null}'),
    ('{o:{a:[1,<|"|>x<|"|>],c:{}}}', '{"o": {"a": [1, "x"], "c": {}}}'),
    ('{o:{<|"|>a b<|"|>:-1.5}}', '{"o": {"a b": -1.5}}'),
    ('{k:<|"|>a\\n"b\' \n<|x|>}{<|"|>}', '{"k": "a\\\\n\\"b\' \\n<|x|>}{"}'),
    ('{k:<|"|><tool_call|><|"|>}', '{"k": "<tool_call|>"}'),
    ('{k:<|"|>02134<|"|>,l:02134}', '{"k": "02134", "l": "02134"}'),
    ('{k:<|"|><|"|>}', '{"k": ""}'),
    ('{ k : 1 , l : [ ] }', '{"k": 1, "l": []}'),
    ("{k:New York}", '{"k": "New York"}'),
    ('{k-2:<|"|>日本🙂<|"|>}', '{"k-2": "日本🙂"}'),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "json_text"), GEMMA_CALLS)
def test_gemma(arguments: str, json_text: str) -> None:
    text = f"a<|tool_call>call:f{arguments}<tool_call|><|tool_call>call:ns.g{{}}<tool_call|>"
    assert parts_of(GEMMA, text) == [c("a"), call(0, "f", json_text), call(1, "ns.g")]
    json.loads(json_text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<|tool_call>call:f{k:", [call(0, "f", '{"k": ')]),
        ('<|tool_call>call:f{k:<|"|>v<|', [call(0, "f", '{"k": "v<|')]),
        ("<|tool_call>call:f{k:1<tool_call|>x", [call(0, "f", '{"k": 1'), c("x")]),
        ("<|tool_call>call:f{k}<tool_call|>x", [call(0, "f", '{"k"'), c("}x")]),
        ("<|tool_call>call:f{}x<tool_call|>y", [call(0, "f"), c("xy")]),
        ("<|tool_call>f{}<tool_call|>", [c("<|tool_call>f{}<tool_call|>")]),
    ],
)
def test_broken_gemma_calls(text: str, parts: Joined) -> None:
    assert parts_of(GEMMA, text) == parts


def test_calls_stream() -> None:
    # TAB-56, VLLM-66; complaint 1
    parser = PYTHON.parser(SCHEMAS)
    shown = [part for char in "[f(a='" for part in parser.feed(char)]
    assert shown[0] == ToolCallDelta(0, name="f")
    assert parser.feed("o") == [ToolCallDelta(0, arguments='"o')]
    for char in "ne, (two)":
        assert parser.feed(char) == [ToolCallDelta(0, arguments=char)]
    assert parser.feed("'") == []
    assert parser.feed(")") == [ToolCallDelta(0, arguments='"}')]


@pytest.mark.parametrize("tools", FORMATS.values(), ids=FORMATS)
def test_parsers_share_nothing(tools: LiteralCalls) -> None:
    # VLLM-65
    one, other = tools.parser(SCHEMAS), tools.parser(SCHEMAS)
    written = tools.call.replace("{function}", "f")
    one.feed(f"{tools.start}{written}")
    text = f"{tools.start}{written.replace('f', 'g')}{tools.closer}{tools.end}"
    assert run(lambda: other, [text]) == [call(0, "g")]


# What `repr` writes is Python; a NaN or an infinity is no literal.
literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12) | st.text("'\"\\\n, ):]}x", max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=6) | st.integers() | st.booleans() | st.none(), inner,
                      max_size=3),
    max_leaves=8,
)  # fmt: skip


@examples(400)
@given(value=literals)
def test_a_literal_is_what_python_says_it_is(value: object) -> None:
    text = repr(value)
    written = python_literal(text)
    assert written is not None
    # Through JSON, which makes lists of tuples and strings of keys; the last of equal ones counts.
    assert json.loads(written) == json.loads(json.dumps(ast.literal_eval(text)))


@examples(200)
@given(text=st.text("'\"\\x0N{}[](),:1e-_ nTF\n", max_size=14))
def test_what_python_accepts_is_read_in_the_same_way(text: str) -> None:
    # No model breaks lines outside of strings with a backslash.
    assume("\\\n" not in text)
    text = f"[{text}]"
    try:
        value = ast.literal_eval(text)
        expected = json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        python_literal(text)
        return
    written = python_literal(text)
    assert written is not None
    assert json.loads(written) == json.loads(expected)


def texts(tools: LiteralCalls) -> st.SearchStrategy[str]:
    head = tools.call.replace("{function}", "f")
    tags = [tools.start, tools.end, head, tools.closer, "[", "]", "a=", "k:", '<|"|>']
    fragment = st.one_of(
        st.sampled_from(tags),
        st.sampled_from([tag[:-1] for tag in tags]),
        st.sampled_from(["'", '"', "'''", "\\", ",", " ", "\n", "(", ")", "{", "}", "1", "None"]),
        st.sampled_from(["é", "x", "\\x4", "\\u00e", "'s", f"{tools.start}[{head}a='b'"]),
        st.text(max_size=3),
    )
    return st.lists(fragment, max_size=20).map("".join)


@pytest.mark.parametrize("tools", FORMATS.values(), ids=FORMATS)
@examples(300)
@given(data=st.data())
def test_any_text_however_cut(tools: LiteralCalls, data: st.DataObject) -> None:
    # VLLM-61, VLLM-64, VLLM-67
    pieces = data.draw(cut(texts(tools)))
    text = "".join(pieces)
    parts = run(lambda: tools.parser(SCHEMAS), pieces)
    assert parts == run(lambda: tools.parser(SCHEMAS), [text])
    assert parts == run(lambda: tools.parser(SCHEMAS), text)
    calls = calls_of(parts)
    assert [index for index, _, _ in calls] == list(range(len(calls)))
    if not calls:
        assert content_of(parts) == text
    chars = iter(text)
    assert all(char in chars for char in content_of(parts))


@pytest.mark.parametrize("tools", PYTHONIC.values(), ids=PYTHONIC)
@examples(100)
@given(data=st.data())
def test_calls_come_back_exactly(tools: LiteralCalls, data: st.DataObject) -> None:
    identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_é]{0,7}", fullmatch=True)
    many = st.dictionaries(identifiers, values, max_size=4)
    calls = data.draw(st.lists(st.tuples(names, many), min_size=1, max_size=3))
    written = ", ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in each.items())})"
        for name, each in calls
    )
    pieces = data.draw(cut(st.just(f"{tools.start}[{written}]{tools.end}")))
    parts = run(tools.parser, pieces)
    found = [(name, json.loads(str(arguments))) for _, name, arguments in calls_of(parts)]
    assert found == calls
    assert content_of(parts) == ""


@pytest.mark.parametrize("tools", FORMATS.values(), ids=FORMATS)
def test_long_texts(tools: LiteralCalls) -> None:
    head = f"{tools.start}{tools.call.replace('{function}', 'f')}a{tools.separator}"
    for body in ("'", "''' ", "1" * 9, "[", "(", " ", "'x' ", "x,", '<|"|>', "\\", "{1:"):
        for text in (head + body * 800, head + "'" + body * 800, body * 800):
            run(lambda: tools.parser(SCHEMAS), text)
            run(lambda: tools.parser(SCHEMAS), [text])
    deep = "[" * 20_000 + "]" * 20_000
    ((_, _, written),) = calls_of(run(tools.parser, [f"{head}{deep}{tools.closer}{tools.end}"]))
    assert written == f'{{"a": {deep}}}'
