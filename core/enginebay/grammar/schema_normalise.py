"""Rewrites a JSON Schema into keywords that the grammar engine implements exactly."""

from collections.abc import Mapping
from contextlib import suppress

from enginebay.grammar.regex import string_regex
from enginebay.grammar.subschema import Schema, at_pointer, edited

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
_IN_PLACE = frozenset(
    ["$dynamicRef", "$ref", "allOf", "anyOf", "contains", "dependentSchemas", "if", "not", "oneOf"]
)

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"

FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""RFC 3339 patterns for existing days; the engine's own ignore leap years."""


def rewritten(schema: Schema) -> dict[str, object]:
    """An equivalent schema in keywords that the engine implements."""

    def edit(node: dict[str, object]) -> dict[str, object]:
        node = _without_the_needless(node)
        return _with_engine_patterns(_with_format(_with_named_properties(node, schema)))

    return edited(schema, edit)


def _without_the_needless(node: dict[str, object]) -> dict[str, object]:
    """Without keywords that have no effect here, and with counts as integers."""
    for key in _COUNTS:
        count = node.get(key)
        if isinstance(count, float) and count.is_integer():
            node[key] = int(count)
    if node.get("uniqueItems") is False:
        del node["uniqueItems"]
    required, least = node.get("required"), node.get("minProperties")
    if (
        isinstance(required, list)
        and isinstance(least, int)
        and least <= len(set(map(str, required)))
    ):
        del node["minProperties"]
    if _IN_PLACE.isdisjoint(node):  # nothing but the schema itself evaluates
        for unevaluated, rest in _UNEVALUATED.items():
            if unevaluated in node:
                node.setdefault(rest, node.pop(unevaluated))
    if node.get("propertyNames") in (True, {}, {"type": "string"}):
        del node["propertyNames"]
    return node


def _with_named_properties(node: dict[str, object], root: Schema) -> dict[str, object]:
    """With the properties that `propertyNames` allows, where that is all that names any."""
    names = node.get("propertyNames")
    if "properties" in node or "patternProperties" in node or not isinstance(names, Mapping):
        return node
    if names.keys() == {"$ref"} and str(names["$ref"]).startswith("#/"):
        try:
            names = at_pointer(root, str(names["$ref"])[1:])
        except KeyError:
            return node
    if not isinstance(names, Mapping) or names.get("type", "string") != "string":
        return node
    meant = names.keys() - {"type", "title", "description"}
    value = node.get("additionalProperties", True)
    if meant == {"pattern"} and isinstance(names["pattern"], str):
        named = {"patternProperties": {names["pattern"]: value}}
    elif meant == {"enum"} and isinstance(names["enum"], list):
        named = {"properties": {name: value for name in names["enum"] if isinstance(name, str)}}
    elif meant == {"const"} and isinstance(names["const"], str):
        named = {"properties": {names["const"]: value}}
    else:
        return node
    rest = {key: value for key, value in node.items() if key != "propertyNames"}
    return {**rest, **named, "additionalProperties": False}


def _with_format(node: dict[str, object]) -> dict[str, object]:
    """With the pattern of a format that the engine does not know exactly."""
    pattern = FORMATS.get(str(node.get("format")))
    if not pattern:
        return node
    rest = {key: value for key, value in node.items() if key != "format"}
    if "pattern" not in rest:
        return {**rest, "pattern": pattern}
    others = rest.get("allOf", [])
    return {**rest, "allOf": [*(others if isinstance(others, list) else []), {"pattern": pattern}]}


def _with_engine_patterns(node: dict[str, object]) -> dict[str, object]:
    """With patterns in the engine's syntax, where they have one."""
    pattern, patterns = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str):
        node["pattern"] = _in_engine_syntax(pattern)
    if isinstance(patterns, Mapping):
        node["patternProperties"] = {_in_engine_syntax(key): part for key, part in patterns.items()}
    return node


def _in_engine_syntax(pattern: str) -> str:
    with suppress(ValueError):
        return string_regex(pattern)
    return pattern
