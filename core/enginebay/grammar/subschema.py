"""Extracts a part of a JSON Schema as a standalone schema."""

from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import urldefrag, urljoin

Schema: TypeAlias = Mapping[str, object]

MAPS = frozenset(
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"]
)
"""Keywords whose value has schemas by name."""

DATA = frozenset(["const", "enum", "default", "examples", "example"])
"""Keywords whose value holds no schema, whatever it looks like."""


def subschema(root: Schema, pointer: str) -> dict[str, object]:
    """The part of a schema at a JSON pointer (RFC 6901), as a standalone schema.

    What the part refers to comes along: its `$defs` then have the root under an unused name.
    `KeyError` where there is no schema.
    """
    part = at_pointer(root, pointer)
    if isinstance(part, bool):
        return {} if part else {"not": {}}
    if not isinstance(part, Mapping):
        raise KeyError(pointer)
    if not pointer:
        return dict(part)
    dialect = {"$schema": root["$schema"]} if "$schema" in root else {}
    base = str(root.get("$id", ""))
    taken = _mapping(part.get("$defs"))
    name = next(name for i in range(len(taken) + 1) if (name := f"root{i or ''}") not in taken)
    met: list[str] = []

    def moved(schema: dict[str, object]) -> dict[str, object]:
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        address, fragment = urldefrag(urljoin(base, reference))
        if address != urldefrag(base).url:
            return schema
        met.append(reference)
        into = f"/$defs/{name}{fragment}" if fragment[:1] in ("", "/") else fragment
        return {**schema, "$ref": f"#{into}"}

    own = edited(part, moved)
    if not met:
        return {**dialect, **part}
    own = edited(own, lambda schema: _without(schema, "$anchor"))
    whole = _without(edited(root, moved), "$id", "$schema")
    own["$defs"] = {**_mapping(own.get("$defs")), name: whole}
    return {**dialect, **own}


def edited(
    schema: Schema, edit: Callable[[dict[str, object]], dict[str, object]]
) -> dict[str, object]:
    """A schema with every schema in it edited, the innermost first."""

    def walk(node: object, *, names: bool = False) -> object:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        if names:
            return {name: walk(value) for name, value in node.items()}
        return edit(inner(node))

    def inner(node: Schema) -> dict[str, object]:
        return {
            key: value if key in DATA else walk(value, names=key in MAPS)
            for key, value in node.items()
        }

    return edit(inner(schema))


def at_pointer(root: object, pointer: str) -> object:
    """The value at a JSON pointer (RFC 6901); `KeyError` if there is none."""
    node = root
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            raise KeyError(pointer)
    return node


def further(pointer: str, key: str | int) -> str:
    """A JSON pointer, one key further."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _without(schema: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in schema.items() if key not in keys}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
