"""Validation errors of pydantic in the words of someone who edits a config."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from enginebay.config.problems import KeyPath, is_secret
from enginebay.config.tabbyapi import setting_of_tabbyapi
from enginebay.config.walk import Schema, existing, homes, known_keys, nearest, schema_at

EXPECTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "list": "must be a list, such as [a, b]",
    "model": "must be a mapping",
    "dict": "must be a mapping",
}


def explain(error: ValidationError, data: Any, schema: Schema) -> Iterator[tuple[KeyPath, str]]:
    """The key path in `data` and the message of each error; alternatives of a value are joined."""
    messages: dict[KeyPath, list[str]] = {}
    for details in error.errors(include_url=False):
        path = existing(data, details["loc"])  # pydantic puts in its names of alternatives
        if details["type"] == "missing":
            path = (*existing(data, details["loc"][:-1]), details["loc"][-1])
        message = _message(details, path, schema)
        if message not in (known := messages.setdefault(path, [])):
            known.append(message)
    for path, alternatives in messages.items():
        alternatives[1:] = [text.removeprefix("must be ") for text in alternatives[1:]]
        yield path, " or ".join(alternatives) + _instead_of(path, alternatives, data)


def _message(details: ErrorDetails, path: KeyPath, schema: Schema) -> str:
    match details["type"]:
        case "missing":
            about = schema_at(schema, path).get("description", "")
            return f"is missing{': ' if about else ''}{about}"
        case "extra_forbidden":
            return _unknown(path, schema)
        case "invalid_key":
            return f"the key {details['input']!r} must be text; put it in quotes"
        case "value_error":
            return details["msg"].removeprefix("Value error, ")
    expected = EXPECTED.get(details["type"].partition("_")[0])
    wrong_type = details["type"].endswith(("_type", "_parsing", "_from_float", "_number"))
    if expected and wrong_type:
        return expected
    for begin in ("Input should", "String should", "List should", "Value should"):
        details["msg"] = details["msg"].replace(f"{begin} be", "must be").replace(begin, "must")
    return details["msg"]


def _unknown(path: KeyPath, schema: Schema) -> str:
    name, parent = str(path[-1]), path[:-1]
    if name.strip() != name or not name.isprintable():
        return "unknown key: an invisible character is in it, such as a no-break space; delete it"
    if home := next(homes(schema, parent, name), None):
        return f"unknown key here; it belongs under {home!r}"
    if here := setting_of_tabbyapi(name):
        return f"unknown key; this setting of TabbyAPI is {here}"
    return "unknown key" + nearest(name, known_keys(schema, parent))


def _instead_of(path: KeyPath, alternatives: list[str], data: Any) -> str:
    """`, not 'x'`, where that helps and shows no secret."""
    if not alternatives[0].startswith("must") or is_secret(path):
        return ""
    for part in path:
        data = data[part]
    kinds = {list: "a list", dict: "a mapping", type(None): "nothing"}
    shown = kinds.get(type(data)) or repr(data)
    quotes = alternatives == [EXPECTED["string"]] and type(data) not in kinds
    hint = "; put it in quotes" if quotes else ""
    return f", not {shown}{hint}" if len(shown) < 100 else hint
