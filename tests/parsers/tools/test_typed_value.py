"""Values that are written as text, and what a schema says about them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay_parsers.arguments.argument_schema import ArgumentSchema
from enginebay_parsers.arguments.typed_value import TypedValue
from tests.effort import examples
from tests.parsers.cutting import cut
from tests.parsers.tools.values import as_text, schema_of, values

STRING = {"type": "string"}
NUMBER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (STRING, "string"),
        ({"type": "STRING"}, "string"),
        (NUMBER, "number"),
        ({"type": ["string", "null"]}, "null string"),
        ({"type": "string", "nullable": True}, "null string"),
        ({"anyOf": [STRING, {"type": "null"}]}, "null string"),
        ({"oneOf": [STRING, {"anyOf": [NUMBER, {"type": "boolean"}]}]}, "boolean number string"),
        ({"allOf": [{"type": ["string", "null"]}, STRING]}, "string"),
        ({"enum": ["1", "2"]}, "string"),
        ({"enum": [1, 2.5, None]}, "null number"),
        ({"const": True}, "boolean"),
        ({"type": "string", "enum": ["a"]}, "string"),
        ({"$ref": "#/$defs/a"}, "string"),
        ({"$ref": "#/$defs/b"}, "null string"),
        ({"$ref": "#/$defs/c~1d"}, "array"),
        ({"properties": {}}, "object"),
        ({"items": STRING}, "array"),
        ({"enum": [[1], {"a": 1}]}, "array object"),
        # Nothing is known.
        ({}, ""),
        ({"type": "str"}, ""),
        ({"type": 5}, ""),
        ({"anyOf": [STRING, {}]}, ""),
        ({"anyOf": "x", "enum": 1, "allOf": None}, ""),
        ({"$ref": "#/$defs/circle"}, ""),
        ({"$ref": "#/nowhere/at/all"}, ""),
        ({"$ref": "https://example.com"}, ""),
        ({"$ref": 1}, ""),
        (True, ""),
        (None, ""),
        # Contradictions: the first word counts.
        ({"type": "string", "enum": [1]}, "string"),
    ],
)
def test_types(schema: object, types: str) -> None:
    root = {
        "properties": {"a": schema},
        "$defs": {
            "a": STRING,
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}, {"$ref": "#/$defs/a"}]},
            "c/d": {"type": "array"},
            "circle": {"anyOf": [{"$ref": "#/$defs/circle"}, STRING]},
        },
    }
    assert " ".join(sorted(ArgumentSchema(root).member("a").types)) == types


def test_members_and_items() -> None:
    schema = ArgumentSchema(
        {
            "$ref": "#/$defs/a",
            "anyOf": [{"properties": {"y": NUMBER}}, {"additionalProperties": {"type": "null"}}],
            "$defs": {"a": {"properties": {"x": {"items": STRING}}, "allOf": [{"$ref": "#"}]}},
        }
    )
    assert schema.members == ["x", "y"]
    assert schema.member("x").item().types == {"string"}
    assert schema.member("y").types == {"number"}
    assert schema.member("z").types == {"null"}
    assert schema.member("x").item().item().types == frozenset()
    assert ArgumentSchema(None).members == ArgumentSchema({"properties": 1}).members == []


def said(types: str, text: str, *, is_text: bool | None = None, pieces: int = 1) -> str:
    value = TypedValue(frozenset(types.split()), is_text=is_text)
    shown = [value.feed(text[n : n + pieces]) for n in range(0, len(text), pieces)]
    return "".join(shown) + value.end()


@pytest.mark.parametrize(
    ("types", "text", "json_text"),
    [
        ("string", "5", '"5"'),
        ("string", "null", '"null"'),
        ("string null", "null", "null"),
        ("string null", " null ", "null"),
        ("string null", "nulls", '"nulls"'),
        ("string null", "", '""'),
        ("string number", "-1.5", "-1.5"),
        ("string number", "02134", '"02134"'),
        ("string number", "5 km", '"5 km"'),
        ("string number", "5" * 99, f'"{"5" * 99}"'),
        ("string boolean", "True", "true"),
        ("string boolean", "Truely", '"Truely"'),
        ("string object", ' {"a": 1}', ' {"a": 1}'.strip()),
        ("string object", "{a}", '"{a}"'),
        ("string object", "[1]", '"[1]"'),
        ("string array", "[1, 2", '"[1, 2"'),
        ("number boolean", "true", "true"),
        ("object", "{'a': 'it\\'s'}", '{"a": "it\'s"}'),
        ("array", "(1, 2)", "[1, 2]"),
        ("object null", "None", "null"),
        ("number", "[1]", "[1]"),
        ("", "[1]", '"[1]"'),
    ],
)
def test_values(types: str, text: str, json_text: str) -> None:
    # Complaint 5
    assert said(types, text) == said(types, text, pieces=99) == json_text
    json.loads(json_text)


def test_what_the_syntax_says_counts_where_the_schema_leaves_it_open() -> None:
    assert said("", "5", is_text=True) == '"5"'
    assert said("", "5", is_text=False) == "5"
    assert said("", "x", is_text=False) == '"x"'
    assert said("string number", "5", is_text=True) == '"5"'
    assert said("string number", "5", is_text=False) == "5"
    assert said("string", "5", is_text=False) == '"5"'
    assert said("number", "5", is_text=True) == "5"


def test_depth_does_not_matter() -> None:
    deep = "[" * 30_000 + "]" * 30_000
    assert said("array", deep, pieces=99_999) == deep
    assert said("number", "1" * 9_000) == "1" * 9_000


@examples(300)
@given(data=st.data())
def test_every_value_comes_back(data: st.DataObject) -> None:
    value = data.draw(values)
    types = ArgumentSchema(schema_of(value)).types
    # As JSON, or as Jinja writes what is no string.
    text = as_text(value) if data.draw(st.booleans()) else str(value)
    pieces = data.draw(cut(st.just(text)))
    typed = TypedValue(types)
    assert json.loads("".join(map(typed.feed, pieces)) + typed.end()) == value


@examples(300)
@given(data=st.data())
def test_any_text_is_json_in_the_end(data: st.DataObject) -> None:
    names = ["string", "number", "boolean", "object", "array", "null"]
    types = data.draw(st.sets(st.sampled_from(names)))
    is_text = data.draw(st.none() | st.booleans())
    text = st.text() | st.text("nulTrue015-.e+[]{},: '\"\\", max_size=9)
    pieces = data.draw(cut(text))
    typed = TypedValue(frozenset(types), is_text=is_text)
    written = "".join(map(typed.feed, pieces)) + typed.end()
    json.loads(written)
    whole = TypedValue(frozenset(types), is_text=is_text)
    assert whole.feed("".join(pieces)) + whole.end() == written
    if types == {"string"} or (not types and is_text is not False):
        assert json.loads(written) == "".join(pieces)
