"""Walking JSON schemas and plain data along a key path."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from enginebay.config.problems import KeyPath

Schema = Mapping[str, Any]


def schema_at(schema: Schema, path: KeyPath) -> Schema:
    """The part of a JSON schema that describes the value at `path`; empty when none does."""
    here = _resolved(schema, schema)
    for part in path:
        inner = here.get("items") if isinstance(part, int) else here.get("properties", {}).get(part)
        here = _resolved(inner or {}, schema)
    return here


def _resolved(here: Schema, root: Schema) -> Schema:
    """Follow `$ref`; of alternatives, the first that is not null."""
    if "oneOf" in here:
        return {**_resolved(here["oneOf"][0], root), **here}
    if "$ref" in here:
        target = root["$defs"][here["$ref"].rpartition("/")[2]]
        return {**_resolved(target, root), **here}
    if "anyOf" in here:
        choices = [choice for choice in here["anyOf"] if choice.get("type") != "null"]
        return {**_resolved(choices[0], root), **here}
    return here


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean 'x'?`, or the list of known names."""
    found = get_close_matches(name.lower(), known, n=1)
    if found:
        return f"; did you mean {found[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def known_keys(schema: Schema, path: KeyPath) -> list[str]:
    """The keys of the mapping at `path`."""
    return list(schema_at(schema, path).get("properties", {}))


def homes(schema: Schema, path: KeyPath, name: str) -> Iterator[str]:
    """Sections below `path` that have a key of this name."""
    for section in known_keys(schema, path):
        if name in known_keys(schema, (*path, section)):
            yield section


def existing(data: Any, path: KeyPath) -> KeyPath:
    """`path` without parts that do not exist in `data`, such as names of alternatives."""
    there: list[str | int] = []
    for part in path:
        try:
            data = data[part]
        except (LookupError, TypeError):
            continue
        there.append(part)
    return tuple(there)
