"""JSON Schema keywords that the grammar engine would not enforce exactly."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal

from enginebay.contract.errors import SchemaError
from enginebay.grammar.regex import string_regex
from enginebay.grammar.schema_normalise import rewritten
from enginebay.grammar.subschema import Schema, further

_LARGEST = 2**53
_MOST_REMAINDERS = 10_000  # the engine's lexer has a state for each
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")

_IGNORED = frozenset(
    [
        "$recursiveRef",
        "disallow",
        "divisibleBy",
        "extends",
        "formatExclusiveMaximum",
        "formatExclusiveMinimum",
        "formatMaximum",
        "formatMinimum",
    ]
)
"""Assertions of older drafts and of Ajv, which the engine takes for annotations."""


def soundness_errors(node: Schema, pointer: str) -> Iterator[SchemaError]:
    """Errors for keywords of the schema at `pointer` that would not be enforced."""
    for key, value in node.items():
        try:
            _check(node, key, value, further(pointer, key))
        except SchemaError as error:
            yield error


def remainder_errors(nodes: Sequence[tuple[str, Schema]]) -> Iterator[SchemaError]:
    """Errors for each `multipleOf` with too many remainders to compile in time.

    Schemas in an `allOf` count by their least common multiple.
    """
    steps = {
        further(pointer, "multipleOf"): Decimal(str(step))
        for pointer, node in nodes
        if isinstance(step := node.get("multipleOf"), int | float)
        and not isinstance(step, bool)
        and 0 < step <= _LARGEST
    }
    together = any("allOf" in node or "$ref" in node for _, node in nodes)
    decimals = max([0, *(_decimals(step) for step in steps.values())])
    multiple = 1
    for place, step in steps.items():
        scale = decimals if together else _decimals(step)
        multiple = math.lcm(multiple if together else 1, int(step.scaleb(scale)))
        if multiple > _MOST_REMAINDERS:
            reason = f"multipleOf with more than {_MOST_REMAINDERS} remainders is not supported"
            yield SchemaError(place, reason)
            multiple = 1


def _decimals(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _check(node: Schema, key: str, value: object, place: str) -> None:
    if key in _IGNORED:
        raise SchemaError(place, f"{key} is not supported")
    if key == "$id" and place != "/$id" and isinstance(value, str):
        raise SchemaError(place, "$id is supported only at the top")
    if key == "minProperties":
        _check_least_properties(node, place)
    elif check := _CHECKS.get(key):
        check(value, place)


def _check_value(value: object, place: str) -> None:
    """Rejects what the engine cannot write: most control characters and inexact numbers."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_value(key, place)
            _check_value(inner, further(place, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _check_value(inner, further(place, i))
    elif isinstance(value, str):
        if found := _CONTROL.search(value):
            raise SchemaError(place, f"the character {found[0]!a} cannot be generated")
    elif isinstance(value, int | float) and abs(value) > _LARGEST:
        raise SchemaError(place, "numbers beyond 2**53 cannot be enforced exactly")


def _check_names(value: object, place: str) -> None:
    if isinstance(value, Mapping | list):
        for name in value:
            if isinstance(name, str):
                _check_value(name, place)


def _check_pattern(value: object, place: str) -> None:
    if isinstance(value, str):
        try:
            string_regex(value)
        except ValueError as error:
            raise SchemaError(place, str(error)) from None


def _check_patterns(value: object, place: str) -> None:
    if isinstance(value, Mapping):
        for pattern in value:
            _check_pattern(pattern, further(place, pattern))


def _check_least_properties(node: Schema, place: str) -> None:
    """The engine counts a repeated name twice."""
    left = rewritten({key: node[key] for key in ("minProperties", "required") if key in node})
    least = left.get("minProperties", 0)
    if isinstance(least, int | float) and least > 1:
        raise SchemaError(
            place,
            "minProperties above 1 and above the number of required properties is not supported",
        )


_CHECKS: Mapping[str, Callable[[object, str], None]] = {
    "const": _check_value,
    "enum": _check_value,
    "properties": _check_names,
    "required": _check_names,
    "pattern": _check_pattern,
    "patternProperties": _check_patterns,
    "minimum": _check_value,
    "maximum": _check_value,
    "exclusiveMinimum": _check_value,
    "exclusiveMaximum": _check_value,
    "multipleOf": _check_value,
}
