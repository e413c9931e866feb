"""The tables of `docs/reference/configuration.md`, made from the schemas."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from enginebay.config.walk import Schema, schema_at

KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
}


def rows(schema: Schema, *path: str | int) -> Iterator[str]:
    """A row for each key of the mapping at `path`."""
    section = schema_at(schema, path)
    for key in section["properties"]:
        field = schema_at(schema, (*path, key))
        kinds = [field]
        if field.get("type") == "boolean":  # or a list, which `schema_at` passes over
            others = section["properties"][key].get("anyOf", ())
            kinds += [other for other in others if other.get("type") == "array"]
        value = " ".join(filter(None, [", or ".join(map(_kind, kinds)), _range(field)]))
        default = "required" if key in section.get("required", ()) else _default(field)
        yield f"| `{key}` | {value} | {default} | {field['description']} |"


def _kind(field: Mapping[str, Any]) -> str:
    if field.get("type") == "array":
        items = field["items"]
        kinds = {item.get("type", "string") for item in items.get("anyOf", [items])}
        names = {"string": "text", "integer": "numbers", "number": "numbers"}
        return f"list of {' and '.join(sorted({names[kind] for kind in kinds}, reverse=True))}"
    return ", ".join(field["enum"]) if "enum" in field else KINDS[field.get("type", "string")]


def _range(field: Mapping[str, Any]) -> str:
    """Without the bounds of a machine word, which say nothing to people."""
    bounds = (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("exclusiveMaximum", "below"),
    )
    told = [(word, field[key]) for key, word in bounds if abs(field.get(key, 2**63)) < 2**63]
    return " ".join(f"{word} {bound:g}" for word, bound in told)


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return "not set" if default in (None, {}, []) else f"`{json.dumps(default)}`"
