"""Checks which JSON Schemas, or parts of them, can be enforced."""

import re
from collections.abc import Mapping, Set

from enginebay.contract.errors import SchemaError
from enginebay.contract.grammar import json_value
from enginebay.grammar.check import compile_problem
from enginebay.grammar.lark import to_lark
from enginebay.grammar.schema_traverse import below, check_depth, reachable
from enginebay.grammar.schema_unsupported import remainder_errors, soundness_errors
from enginebay.grammar.subschema import DATA, MAPS, Schema, further, subschema

_MOST_PROBES = 300
_MOST_SEARCHES = 30
_MOST_ROUNDS = 20
_LONGEST = 400
_STRUCTURE = frozenset(["type", "properties", "items", "required", "$ref", "$defs", "definitions"])

_PREFIX = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_UNIMPLEMENTED = re.compile(r'Unimplemented keys: \["([^"]*)"')
_UNSATISFIABLE = "Unsatisfiable schema: "
_REASONS = (
    (r"oneOf constraints are not supported.*", "the branches of oneOf may overlap: use anyOf"),
    (r"Unknown format: (.*)", r"the format '\1' is not supported"),
    (_UNSATISFIABLE, "nothing can satisfy it: "),
)


def check_schema(schema: Schema | bool) -> None:
    """`SchemaError` for a schema that cannot be enforced exactly or cannot be satisfied."""
    for error in _errors(schema):
        raise error


def relaxed(schema: Schema | bool) -> dict[str, object]:
    """The same schema without the keywords that cannot be enforced: it always passes.

    Where the branches of a `oneOf` may overlap, it is treated as `anyOf`.
    """
    left = _object(schema)
    for _ in range(_MOST_ROUNDS):
        errors = _errors(left)
        if not errors:
            return dict(left)
        before = left
        for error in reversed(errors):
            if error.path:
                left = _without(left, [_unescaped(key) for key in error.path.split("/")[1:]])
        if left == before:
            break
    return {"type": "object"} if left.get("type") == "object" else {}


def _errors(schema: Schema | bool) -> list[SchemaError]:
    """The problems of a schema, not always all of them."""
    if schema is False:
        return [SchemaError("", "nothing can satisfy the schema false")]
    root = _object(schema)
    errors, nodes = [], []
    try:
        check_depth(root)
        for pointer, node in reachable(root):
            nodes.append((pointer, node))
            errors += [*soundness_errors(node, pointer)]
        errors += [*remainder_errors(nodes)]
    except SchemaError as error:
        errors.append(error)
    if errors:
        return errors
    if not (problem := _problem(root)):
        return []
    if unimplemented := _UNIMPLEMENTED.match(problem):
        nodes = [(pointer, node) for pointer, node in nodes if unimplemented[1] in node]
    for pointer, node in nodes[:_MOST_PROBES]:
        alone = _problem(_alone(node))
        if alone == problem or _UNIMPLEMENTED.match(alone):
            errors.append(_error(_alone(node), pointer, alone))
    return errors or [_placed(root, problem)]


def _alone(node: Schema) -> dict[str, object]:
    """A schema without what the schemas in it say, and without `oneOf`, which depends on that."""

    def emptied(key: str, value: object) -> object:
        if isinstance(value, list):
            return [_true(item) for item in value]
        if isinstance(value, Mapping):
            return {name: _true(part) for name, part in value.items()} if key in MAPS else {}
        return value

    return {
        key: value if key in DATA else emptied(key, value)
        for key, value in node.items()
        if key not in ("oneOf", "$ref")
    }


def _true(part: object) -> object:
    return {} if isinstance(part, Mapping) else part


def _object(schema: object) -> Schema:
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        raise SchemaError("", "a schema must be an object, true or false")
    return schema


def _problem(schema: Schema) -> str:
    """The engine's errors for a schema."""
    try:
        return _PREFIX.sub("", compile_problem(to_lark(json_value(schema), {})))
    except ValueError as error:
        return str(error)


def _placed(root: Schema, problem: str) -> SchemaError:
    """The error of the innermost schema that has this problem on its own."""
    probes = _MOST_SEARCHES
    pointer, node = "", root
    seen = {""}
    waiting = below(root, pointer, node)[::-1]
    while waiting and probes:
        place, inner = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        probes -= 1
        if found := _same(problem, _problem(subschema(root, place)), place):
            problem, pointer, node = found, place, inner
            waiting = below(root, pointer, node)[::-1]
    return _error(subschema(root, pointer), pointer, problem, set(node))


def _same(problem: str, inner: str, place: str) -> str:
    """The inner problem, if it is the cause of the outer one."""
    name = place.rpartition("/")[2]
    caused = inner.startswith(_UNSATISFIABLE) and (f"'{name}'" in problem or f"[{name}]" in problem)
    return inner if inner == problem or caused else ""


def _error(schema: Schema, pointer: str, problem: str, keys: Set[str] = frozenset()) -> SchemaError:
    """With the one of these keywords without which the problem is gone; any, if none is named."""
    if (key := _UNIMPLEMENTED.match(problem)) and key[1] in schema:
        return SchemaError(further(pointer, key[1]), f"{key[1]} is not supported")
    reason = problem
    for pattern, text in _REASONS:
        reason = re.sub(pattern, text, reason, flags=re.DOTALL)
    for guilty in sorted(keys or schema.keys(), key=lambda key: (key in _STRUCTURE, key)):
        if _problem({key: each for key, each in schema.items() if key != guilty}) != problem:
            return SchemaError(further(pointer, guilty), reason[:_LONGEST])
    return SchemaError(pointer, reason[:_LONGEST])


def _without(schema: Schema, path: list[str]) -> dict[str, object]:
    """A schema without the keyword, or the part, that a path leads to or into."""
    key, *rest = path
    value = schema.get(key)
    left = {name: each for name, each in schema.items() if name != key}
    if key == "oneOf" and not rest and "anyOf" not in schema:
        return {**left, "anyOf": value}
    if not rest or key in DATA or not isinstance(value, Mapping | list):
        return left
    if isinstance(value, list):
        index = int(rest[0])
        return {**left, key: [*value[:index], _inner(value[index], rest[1:]), *value[index + 1 :]]}
    if key == "patternProperties" and len(rest) == 1:
        others = {name: each for name, each in value.items() if name != rest[0]}
        return {**left, key: others, "additionalProperties": True}
    if key in MAPS:
        return {**left, key: {**value, rest[0]: _inner(value[rest[0]], rest[1:])}}
    return {**left, key: _without(value, rest)}


def _inner(part: object, path: list[str]) -> object:
    return _without(part, path) if path and isinstance(part, Mapping) else {}


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
