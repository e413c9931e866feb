"""Tool calls whose arguments are elements in elements."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import Schemas, ToolCallDelta
from enginebay_parsers import TOOLS
from enginebay_parsers.xml.element_calls import ElementCalls
from tests.effort import examples
from tests.parsers.cutting import Joined, calls_of, content_of, cut, run, same_however_cut
from tests.parsers.tools.values import scalars

FORMATS = {name: tools for name, tools in TOOLS.items() if isinstance(tools, ElementCalls)}
TOOL = FORMATS["minimax-m3"]
P = "]<]minimax[>["
STRING: dict[str, object] = {"type": "string"}
SCHEMAS: Schemas = {
    "f": {
        "type": "object",
        "properties": {
            "s": STRING,
            "i": {"type": "integer"},
            "b": {"type": "boolean"},
            "o": {"type": "object", "properties": {"s": STRING, "i": {"type": "integer"}}},
            "l": {"type": "array", "items": {"type": "integer"}},
            "t": {"type": "array", "items": STRING},
            "m": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    }
}


def tags(text: str) -> str:
    """`text` with the prefix in front of every tag."""
    return text.replace("<", f"{P}<")


def c(text: str) -> tuple[str, str]:
    return ("content", tags(text))


def call(index: int, name: str, arguments: str = "{}") -> tuple[object, ...]:
    return ("call", index, name, arguments)


def parts_of(text: str, schemas: Schemas | None = SCHEMAS) -> Joined:
    return same_however_cut(lambda: TOOL.parser(schemas), tags(text))


ARGUMENTS = [
    ("", "{}"),
    ("<s>a</s>", '{"s": "a"}'),
    ("<s>02134</s><i>5</i><b>true</b>", '{"s": "02134", "i": 5, "b": true}'),
    ("<s>\n a \n</s>", '{"s": "\\n a \\n"}'),
    ("<s></s><o></o><l></l>", '{"s": "", "o": {}, "l": []}'),
    ("<o><s>5</s><i>5</i></o>", '{"o": {"s": "5", "i": 5}}'),
    ("<o>\n<s>a</s>\n</o>\n", '{"o": {"s": "a"}}'),
    ("<l><item>1</item><item>2</item></l>", '{"l": [1, 2]}'),
    ("<t><item>1</item></t>", '{"t": ["1"]}'),
    ("<m><item>1</item><x>2.5</x></m>", '{"m": {"item": 1, "x": 2.5}}'),
    ("<i>five</i>", '{"i": "five"}'),
    # As JSON after all.
    ('<o>{"s": 1}</o><l>[1, 2]</l>', '{"o": {"s": 1}, "l": [1, 2]}'),
    # Nothing is said about these.
    ("<x>5</x>", '{"x": "5"}'),
    ("<x></x>", '{"x": ""}'),
    ("<x><item>5</item></x>", '{"x": ["5"]}'),
    ("<x><y><z>a</z></y></x>", '{"x": {"y": {"z": "a"}}}'),
    ("<日本>é🙂</日本>", '{"日本": "é🙂"}'),
    ('<s>"quotes" \\ \x01</s>', '{"s": "\\"quotes\\" \\\\ \\u0001"}'),
    # Ends are missing.
    ("<o><s>a</o><i>1</i>", '{"o": {"s": "a"}, "i": 1}'),
    ("<s>a", '{"s": "a"}'),
]


@pytest.mark.parametrize(("elements", "json_text"), ARGUMENTS)
def test_arguments(elements: str, json_text: str) -> None:
    text = f'a<tool_call>\n<invoke name="f">{elements}</invoke>\n</tool_call>b'
    assert parts_of(text) == [c("a"), call(0, "f", json_text), c("b")]
    json.loads(json_text)


def test_several_calls() -> None:
    # TAB-51, TAB-55
    text = '<tool_call>\n<invoke name="f"><i>1</i></invoke>\n<invoke name="g"></invoke></tool_call>'
    assert parts_of(text) == [call(0, "f", '{"i": 1}'), call(1, "g")]
    text = '<tool_call><invoke name="f"><i>1</i><invoke name="g"></tool_call>'
    assert parts_of(text) == [call(0, "f", '{"i": 1}'), call(1, "g")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>no</tool_call>",
        "<tool_call>\n</tool_call>",
        '<tool_call>\n<invoke name="f',
        '<invoke name="f"></invoke>',
        '<tool_call>{"name": "f"}</tool_call>',
        "</tool_call>",
        "<",
    ],
)
def test_what_is_no_call_comes_back_as_content(text: str) -> None:
    assert parts_of(text) == [c(text)]


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ("", "", ""),
        ("<s>", '{"s": ', ""),
        ("<s>a", '{"s": "a', ""),
        ("<i>1", '{"i": 1', ""),
        ("<o><s>a</s>", '{"o": {"s": "a"', ""),
        ("<s>a</s", '{"s": "a</s', ""),
        ("<i>1</i> so", '{"i": 1}', "so"),
        ("<i>1</i> so</invoke></tool_call>", '{"i": 1}', "so"),
        ("<o><i>1</i>so</o></invoke></tool_call>", '{"o": {"i": 1}}', "so</o>"),
    ],
)
def test_broken_calls(text: str, arguments: str, rest: str) -> None:
    parts = parts_of(f'<tool_call><invoke name="f">{text}')
    arguments = tags(arguments) if text.endswith("</s") else arguments
    assert parts == [call(0, "f", arguments), *([c(rest)] if rest else [])]


def test_calls_stream() -> None:
    # TAB-56, VLLM-66
    parser = TOOL.parser(SCHEMAS)
    parts = parser.feed(tags('<tool_call><invoke name="f"><o><s>'))
    assert parts == [ToolCallDelta(0, name="f"), ToolCallDelta(0, arguments='{"o": {"s": ')]
    assert parser.feed("one ") == [ToolCallDelta(0, arguments='"one ')]
    assert parser.feed("two") == [ToolCallDelta(0, arguments="two")]


@examples(300)
@given(data=st.data())
def test_any_text_however_cut(data: st.DataObject) -> None:
    known = ["<tool_call>", '<invoke name="f">', "</invoke>", "</tool_call>", "<s>", "</s>", "<o>"]
    known += ["</o>", "<l>", "<item>", "</item>", "</l>", "<i>"]
    fragment = st.sampled_from([*map(tags, known), *(tags(tag)[:-1] for tag in known)])
    fragment |= st.sampled_from(["1", " ", "a", "]", "]<]", "é", '"', "{", "true"])
    pieces = data.draw(cut(st.lists(fragment, max_size=20).map("".join)))
    text = "".join(pieces)
    parts = run(lambda: TOOL.parser(SCHEMAS), pieces)
    assert parts == run(lambda: TOOL.parser(SCHEMAS), [text])
    assert parts == run(lambda: TOOL.parser(SCHEMAS), text)
    calls = calls_of(parts)
    assert [index for index, _, _ in calls] == list(range(len(calls)))
    if not calls:
        assert content_of(parts) == text
    for _, _, arguments in calls[:-1]:
        json.loads(str(arguments))


texts = st.text(max_size=9).filter(lambda text: "]" not in text)
plain = scalars.filter(lambda value: value is not None and "]" not in str(value))
trees = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z]{1,4}[0-9]", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


def schema_of(value: object) -> dict[str, object]:
    match value:
        case dict():
            properties = {key: schema_of(each) for key, each in value.items()}
            return {"type": "object", "properties": properties}
        case list():
            items = [schema_of(each) for each in value]
            return {"type": "array", "items": items[0] if items else {}}
        case str():
            return STRING
        case bool():
            return {"type": "boolean"}
        case _:
            return {"type": "number"}


def written(value: object) -> str:
    match value:
        case dict():
            return "".join(f"{P}<{key}>{written(each)}{P}</{key}>" for key, each in value.items())
        case list():
            return "".join(f"{P}<item>{written(each)}{P}</item>" for each in value)
        case str():
            return value
        case _:
            return json.dumps(value)


def uniform(value: object) -> bool:
    """Whether the schema of the first item is that of all of them."""
    match value:
        case dict():
            return all(map(uniform, value.values()))
        case list():
            schemas = [schema_of(each) for each in value]
            return all(map(uniform, value)) and all(each == schemas[0] for each in schemas)
        case _:
            return True


@examples(150)
@given(data=st.data())
def test_calls_come_back_exactly(data: st.DataObject) -> None:
    keys = st.from_regex(r"[a-z]{1,4}[0-9]", fullmatch=True)
    arguments = data.draw(st.dictionaries(keys, trees.filter(uniform), max_size=4))
    text = f'{P}<tool_call>\n{P}<invoke name="f">{written(arguments)}{P}</invoke>\n{P}</tool_call>'
    pieces = data.draw(cut(st.just(text)))
    parts = run(lambda: TOOL.parser({"f": schema_of(arguments)}), pieces)
    ((_, name, json_text),) = calls_of(parts)
    assert name == "f"
    assert json.loads(str(json_text)) == arguments
    assert content_of(parts) == ""
