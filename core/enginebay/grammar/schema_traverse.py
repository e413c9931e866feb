"""Traverses the subschemas of a JSON Schema."""

from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urldefrag, urljoin

from enginebay.contract.errors import SchemaError
from enginebay.grammar.subschema import DATA, MAPS, Schema, at_pointer, further

_DEEPEST = 100
_DEEPEST_BY_REFERENCE = 600  # schemas within schemas: the engine's stack ends at about 700
_WAITING = frozenset(["$defs", "definitions"])  # until they are referred to


def check_depth(root: Schema) -> None:
    """`SchemaError` for a schema nested too deeply for recursive functions."""
    level: list[tuple[str, object]] = [("", root)]
    for _ in range(_DEEPEST):
        inner: list[tuple[str, object]] = []
        for pointer, node in level:
            if isinstance(node, Mapping):
                inner += ((further(pointer, key), value) for key, value in node.items())
            elif isinstance(node, list):
                inner += ((further(pointer, i), value) for i, value in enumerate(node))
        if not inner:
            return
        level = inner
    raise SchemaError(level[0][0], f"it is nested more than {_DEEPEST} levels deep")


def reachable(root: Schema) -> Iterator[tuple[str, Schema]]:
    """All schemas that count and their pointers, the root first.

    `SchemaError` for a `$ref` that does not resolve or nests too deeply.
    """
    seen = {""}
    waiting = [("", root)]
    depth = _height(root)
    while waiting:
        pointer, node = waiting.pop()
        yield pointer, node
        if reference := target(root, pointer, node):
            place, inner = reference
            if place not in seen:
                depth += _height(inner)
            if depth > _DEEPEST_BY_REFERENCE:
                raise SchemaError(pointer, "its references nest it too deeply")
        for place, inner in reversed(below(root, pointer, node)):
            if place not in seen:
                seen.add(place)
                waiting.append((place, inner))


def below(root: Schema, pointer: str, node: Schema) -> list[tuple[str, Schema]]:
    """The schemas right below one, and the one that it refers to."""
    reference = target(root, pointer, node)
    return [*_children(node, pointer), *([reference] if reference else [])]


def target(root: Schema, pointer: str, node: Schema) -> tuple[str, Schema] | None:
    """The schema that one refers to, if it does."""
    if "$ref" not in node:
        return None
    reference, base, place = node["$ref"], str(root.get("$id", "")), further(pointer, "$ref")
    if not isinstance(reference, str):
        raise SchemaError(place, "$ref must be a string")
    try:
        address, fragment = urldefrag(urljoin(base, reference))
        if address != urldefrag(base).url:
            raise SchemaError(
                place, f"{reference!r} is outside this schema, and remote schemas are not fetched"
            )
        found = unquote(fragment)
        if found and not found.startswith("/"):
            found = dict(_anchors(root))[found]
        referred = at_pointer(root, found)
    except (ValueError, KeyError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(place, f"{reference!r} does not exist in this schema") from None
    return (found, referred) if isinstance(referred, Mapping) else None


def _children(node: Schema, pointer: str) -> Iterator[tuple[str, Schema]]:
    for key, value in node.items():
        if key in DATA or key in _WAITING:
            continue
        here = further(pointer, key)
        if isinstance(value, Mapping) and key not in MAPS:
            yield here, value
        elif isinstance(value, Mapping | list):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for name, item in items:
                if isinstance(item, Mapping):
                    yield further(here, name), item


def _height(node: Schema) -> int:
    return 1 + max((_height(child) for _, child in _children(node, "")), default=0)


def _anchors(node: object, pointer: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        if isinstance(anchor := node.get("$anchor"), str):
            yield anchor, pointer
        for key, value in node.items():
            if key not in DATA:
                yield from _anchors(value, further(pointer, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _anchors(value, further(pointer, i))
