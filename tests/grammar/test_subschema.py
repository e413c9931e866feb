"""Parts of schemas stand for the same alone as in the whole."""

import json

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from enginebay import subschema

TREE = {
    "$id": "https://example.com/tree",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "plain": {"type": "integer", "minimum": 3},
        "child": {"$ref": "#"},
        "named": {"$ref": "#name"},
        "absolute": {"type": "array", "items": {"$ref": "https://example.com/tree#/$defs/na~1me"}},
        "own": {
            "$defs": {"root": {"const": 1}},
            "anyOf": [{"$ref": "#/properties/own/$defs/root"}],
        },
        "a/b~c": {"$ref": "#/properties/plain"},
        "$ref": {"const": {"$ref": "#/properties/plain"}},
        "anchored": {"$anchor": "self", "items": {"$ref": "#self"}, "type": "array"},
        "any": True,
    },
    "required": ["plain"],
    "additionalProperties": False,
    "$defs": {"na/me": {"$anchor": "name", "enum": ["x", "y"]}},
}

CASES = [
    ("/properties/plain", [3, 4], [2, "x"]),
    ("/properties/child", [{"plain": 3, "child": {"plain": 4}}], [{}, {"plain": 3, "child": {}}]),
    ("/properties/named", ["x"], ["z"]),
    ("/properties/absolute", [["x"], []], [["z"], "x"]),
    ("/properties/own", [1], [2]),
    ("/properties/a~1b~0c", [3], [2]),
    ("/properties/$ref", [{"$ref": "#/properties/plain"}], [3]),
    ("/properties/anchored", [[], [[], [[]]]], [[1], [[1]]]),
    ("/properties/any", [1, "x"], []),
    ("/$defs/na~1me", ["x"], [1]),
    ("", [{"plain": 3}], [{"plain": 2}]),
]


@pytest.mark.parametrize(("pointer", "valid", "invalid"), CASES, ids=[case[0] for case in CASES])
def test_a_part_validates_as_it_did_in_the_whole(
    pointer: str, valid: list[object], invalid: list[object]
) -> None:
    part = subschema(TREE, pointer)
    Draft202012Validator.check_schema(part)
    validator = Draft202012Validator(part)
    assert [validator.is_valid(each) for each in valid] == [True] * len(valid)
    assert [validator.is_valid(each) for each in invalid] == [False] * len(invalid)
    assert not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(part)))


def test_a_part_keeps_its_keywords_at_the_top() -> None:
    assert subschema(TREE, "/properties/absolute")["type"] == "array"
    assert subschema(TREE, "/properties/plain")["minimum"] == 3


def test_boolean_parts_become_objects() -> None:
    assert subschema({"items": False}, "/items") == {"not": {}}
    assert subschema({"items": True}, "/items") == {}


@pytest.mark.parametrize("pointer", ["/properties/none", "/type", "/required/0", "/required/x"])
def test_where_there_is_no_schema_there_is_no_part(pointer: str) -> None:
    with pytest.raises(KeyError):
        subschema(TREE, pointer)
