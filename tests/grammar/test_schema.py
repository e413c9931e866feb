"""A schema that passes is kept to exactly; any other is refused, at the right place."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from enginebay.contract.errors import SchemaError
from enginebay.contract.grammar import json_value
from enginebay.grammar.json_schema import check_schema, relaxed
from tests.effort import examples
from tests.grammar import coverage
from tests.grammar.walks import accepts, random_text
from tests.schema_suite import WITHOUT, schema_suite

NAMES = st.sampled_from(["a", "b", "é", "x y", "/", '"'])
COUNTS = st.integers(0, 4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def _objects(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    keywords = {
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": st.lists(NAMES, max_size=3, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "x$"]), inner, max_size=1),
        "propertyNames": st.sampled_from([True, {"enum": ["a", "b"]}, {"pattern": "^a"}]),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "uniqueItems": st.booleans(),
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "$ref": st.just("#"),
    }
    return st.fixed_dictionaries({"type": st.sampled_from(["object", "array"])}, optional=keywords)


LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"const": JSON}),
    st.fixed_dictionaries({"enum": st.lists(JSON, max_size=3)}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", "null", "boolean"])},
        optional={
            "minLength": COUNTS,
            "maxLength": COUNTS,
            "pattern": st.sampled_from(
                ["^a+$", "b", "^[^a]*$", r"^\d{2}", r"\x01", "(?=a)", "{a}"]
            ),
            "format": st.sampled_from(["date", "time", "uuid", "ipv4", "colour"]),
            "minimum": st.integers(-20, 20),
            "exclusiveMaximum": st.integers(-20, 20),
            "multipleOf": st.sampled_from([1, 2, 5]),
        },
    ),
)
SCHEMAS = st.recursive(LEAVES, _objects, max_leaves=5)


def passes(schema: Mapping[str, object] | bool) -> bool:
    try:
        check_schema(schema)
    except SchemaError:
        return False
    return True


@examples(150)
@given(SCHEMAS, st.integers(0, 99))
def test_what_keeps_to_a_schema_that_passes_is_valid(
    schema: dict[str, object] | bool, seed: int
) -> None:
    if not passes(schema):
        return
    text = random_text(json_value(schema), seed)
    if text is not None:
        assert Draft202012Validator(schema).is_valid(json.loads(text)), text


@examples(100)
@given(SCHEMAS)
def test_what_is_left_of_a_schema_passes(schema: dict[str, object] | bool) -> None:
    left = relaxed(schema)
    check_schema(left)
    if passes(schema) and not isinstance(schema, bool):
        assert left == schema


KEYWORDS = st.sampled_from([
    "$anchor", "$defs", "$id", "$ref", "$schema", "additionalProperties", "allOf", "anyOf", "const",
    "enum", "format", "if", "items", "minLength", "minProperties", "minimum", "not", "oneOf",
    "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required",
    "type", "x-guidance",
])  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.just("#/items"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=8,
)


@examples(200)
@given(st.dictionaries(KEYWORDS, ANYTHING, max_size=4))
def test_no_object_does_worse_than_a_schema_error(schema: dict[str, object]) -> None:
    passes(schema)
    assert passes(relaxed(schema))


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        (False, "", "nothing can satisfy the schema false"),
        ({"not": {}}, "/not", "not is not supported"),
        ({"propertyNames": {"pattern": None}}, "/propertyNames", "not supported"),
        ({"propertyNames": {"pattern": []}}, "/propertyNames", "not supported"),
        ({"properties": {"a/b": {"items": {"uniqueItems": True}}}},
         "/properties/a~1b/items/uniqueItems", "not supported"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"if": {}}}}},
         "/$defs/a/items/if", "not supported"),
        ({"properties": {"a": {"enum": []}}, "required": ["a"], "type": "object"},
         "/properties/a/enum", "nothing can satisfy it"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "/maximum", "minimum (3) is greater"),
        ({"items": {"type": "text"}}, "/items/type", "Invalid type"),
        ({"items": {"type": "string", "minLength": "3"}}, "/items/minLength", "Expected"),
        ({"anyOf": [{"type": "string", "format": "colour"}]}, "/anyOf/0/format", "'colour'"),
        ({"items": {"oneOf": [{"type": "string"}, {"minLength": 2}]}}, "/items/oneOf", "anyOf"),
        ({"items": {"$ref": "http://a.b/c"}}, "/items/$ref", "remote schemas are not fetched"),
        ({"items": {"$ref": "#/$defs/a"}}, "/items/$ref", "does not exist in this schema"),
        ({"items": {"$ref": "#a"}}, "/items/$ref", "does not exist in this schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "/$defs/a/$ref", "nothing"),
        ({"items": {"$id": "http://a.b"}}, "/items/$id", "only at the top"),
        ({"pattern": "a(?!b)"}, "/pattern", "lookahead is not supported"),
        ({"patternProperties": {"(": {}}}, "/patternProperties", "unclosed group"),
        ({"const": {"a": ["\x01"]}}, "/const/a/0", "'\\x01' cannot be generated"),
        ({"pattern": "^\\x01"}, "/pattern", "cannot be generated"),
        ({"enum": [2**60]}, "/enum/0", "beyond 2**53"),
        ({"type": "object", "minProperties": 2}, "/minProperties", "minProperties above 1"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "/not", "not supported"),
        ({"type": "integer", "divisibleBy": 3}, "/divisibleBy", "not supported"),
        ({"items": {"multipleOf": 19_000_003}}, "/items/multipleOf", "10000 remainders"),
        ({"multipleOf": 1.00001}, "/multipleOf", "10000 remainders"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 0.2}, {"multipleOf": 3}]},
         "/allOf/0/multipleOf", "10000 remainders"),
        ({"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": {"multipleOf": 991}}},
         "/$defs/a/multipleOf", "10000 remainders"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_enforced_says_where(
    schema: dict[str, object] | bool, place: str, reason: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(schema)
    assert (caught.value.path, reason in caught.value.reason) == (place, True), caught.value


def _nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def _chain(length: int) -> dict[str, object]:
    definitions = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {}}}


@pytest.mark.parametrize("schema", [_nested(150), _nested(20_000), _chain(5_000)])
def test_a_schema_too_deep_for_the_stack_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(SchemaError, match="deep"):
        check_schema(schema)
    check_schema(relaxed(schema))


def test_multiples_by_themselves_pass() -> None:
    steps = (9973, 9967, 0.01, 2.5)
    check_schema({"prefixItems": [{"type": "number", "multipleOf": step} for step in steps]})
    check_schema({"type": "number", "allOf": [{"multipleOf": 0.01}, {"multipleOf": 25}]})
    for step in (True, 0, -3, 10**5000, float("nan"), float("inf"), 1e-300):
        check_schema(relaxed({"multipleOf": step}))


def test_a_deep_schema_passes() -> None:
    check_schema(_nested(90))
    check_schema(_chain(200))


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "t", "x-a": 1, "default": 1, "examples": [], "deprecated": True, "$comment": ""},
        {"type": "array", "uniqueItems": False, "maxItems": 2.0},
        {"type": "object", "properties": {"a": True}, "required": ["a"], "minProperties": 1},
        {"propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
        {"pattern": "{[[]"},
        {"$defs": {"unused": {"not": {}}}},
    ],
)
def test_what_says_nothing_here_passes(schema: dict[str, object]) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"0000-01-01"']),
        ({"format": "time"}, ['"23:59:59Z"'], ['"22:59:60Z"', '"1:00:00Z"']),
        ({"format": "date-time"}, ['"2000-02-29T01:02:03.5+01:00"'], ['"1900-02-29T01:02:03Z"']),
        ({"format": "date", "pattern": "^2"}, ['"2024-01-01"'], ['"1999-01-01"']),
        ({"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"const": 1}},
         ['{"a":1}', "{}"], ['{"b":1}', '{"a":2}']),
        ({"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"pattern": "^a"}}},
         ['{"ab":1}'], ['{"b":1}']),
        ({"properties": {"a": {"type": "integer"}}}, ['{"a":1}'], ['{"a":"x"}', '{"\\u0061":"x"}']),
        ({"type": "string", "pattern": "^[a&&b]$"}, ['"&"'], ['""']),
    ],
)  # fmt: skip
def test_what_the_engine_does_not_know_exactly_is_rewritten(
    schema: dict[str, object], valid: list[str], invalid: list[str]
) -> None:
    check_schema(schema)
    grammar = json_value(schema)
    assert [text for text in valid if not accepts(grammar, text)] == []
    assert [text for text in invalid if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"properties": {"a": {"type": "string", "not": {}}}, "type": "object"},
         {"properties": {"a": {"type": "string"}}, "type": "object"}),
        ({"items": {"oneOf": [{"minimum": 1}, {}]}}, {"items": {"anyOf": [{"minimum": 1}, {}]}}),
        ({"enum": ["\x01"], "type": "string"}, {"type": "string"}),
        ({"patternProperties": {"(?=a)": {}}, "additionalProperties": False},
         {"patternProperties": {}, "additionalProperties": True}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}, "type": "null"}}},
         {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}),
        ({"prefixItems": [{}, {"contains": {}}]}, {"prefixItems": [{}, {}]}),
    ],
)  # fmt: skip
def test_only_what_cannot_be_enforced_is_dropped(
    schema: dict[str, object], left: dict[str, object]
) -> None:
    assert relaxed(schema) == left


@pytest.mark.skipif(not schema_suite(), reason=WITHOUT)
@pytest.mark.parametrize("formats", [False, True], ids=["required", "formats"])
def test_nothing_of_the_official_suite_passes_that_is_invalid(formats: bool) -> None:
    unsound, passed = [], 0
    for group in schema_suite(formats=formats):
        schema = group.schema
        assert isinstance(schema, dict | bool)
        if not passes(schema):
            continue
        passed += 1
        grammar = json_value(schema)
        unsound += [
            (group.keyword, group.description, instance.description)
            for instance in group.instances
            if not instance.valid
            and accepts(grammar, json.dumps(instance.data, ensure_ascii=False))
        ]
    assert passed > (10 if formats else 100)
    assert unsound == []


@pytest.mark.skipif(not schema_suite(), reason=WITHOUT)
def test_the_page_shows_what_can_be_enforced_now() -> None:
    text = coverage.PAGE.read_text(encoding="utf-8")
    assert coverage.page(text) == text, "run python -m tests.grammar.coverage"
