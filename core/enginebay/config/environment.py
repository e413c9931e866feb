"""Config values from environment variables: `ENGINEBAY_SERVER__PORT=9000`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from enginebay.config.problems import KeyPath, key_text
from enginebay.config.walk import Schema, schema_at

PREFIX = "ENGINEBAY_"


class Unusable(Exception):
    """A value that cannot be set; the message says why."""


def variables(environ: Mapping[str, str]) -> Iterator[tuple[str, KeyPath, str]]:
    """Name, key path and text of every variable that sets a config value.

    Variables without `__` are ignored (Kubernetes sets such ones for a service of the same name),
    and so are empty ones.
    """
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and "__" in name and text:
            parts = name.removeprefix(PREFIX).lower().split("__")
            yield name, tuple(int(p) if p.isdecimal() else p for p in parts), text


def decoded(text: str, path: KeyPath, schema: Schema) -> Any:
    """Parse a variable's text: lists as JSON or comma separated, mappings as JSON."""
    kind = schema_at(schema, path).get("type")
    if kind == "array" and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    if kind not in ("array", "object"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unusable(f"is not valid JSON: {error}") from error


def with_value(data: Any, path: KeyPath, value: Any, above: KeyPath = ()) -> Any:
    """A copy of `data` with `value` at `path`; missing sections are created."""
    if not path:
        return value
    head, rest, below = path[0], path[1:], (*above, path[0])
    if data is None:
        data = [] if isinstance(head, int) else {}
    if isinstance(data, dict) and isinstance(head, str):
        return {**data, head: with_value(data.get(head), rest, value, below)}
    if isinstance(data, list) and isinstance(head, int) and head <= len(data):
        old = data[head] if head < len(data) else None
        return [*data[:head], with_value(old, rest, value, below), *data[head + 1 :]]
    if isinstance(data, list):
        first = f"{PREFIX}{'__'.join(map(str, above)).upper()}__0"
        raise Unusable(
            f"{key_text(above)} has {len(data)} entries; variables of the first begin "
            f"with {first}__"
        )
    raise Unusable(f"{key_text(above)} has no keys of its own")
