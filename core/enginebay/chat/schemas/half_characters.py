"""U+FFFD in place of halves of surrogate pairs, which have no UTF-8 form, in text of clients.

A client that cuts a text in UTF-16 sends half an emoji. No tokenizer and no answer can have it.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from enginebay.config.problems import KeyPath, key_text

REPLACEMENT = "\ufffd"
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""The beginning of an escape that may be a half. JSON without it has none."""
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(  # a pair is none of the second group
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_LONGEST_OPEN = 6  # characters of an escape
_HEX = re.compile("[0-9a-fA-F]{0,3}")
_LOW_BEGINS = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")
_JSON_TEXTS = frozenset(
    ("arguments", "dry_sequence_breakers", "guided_json", "json", "json_schema", "schema")
)
"""Fields of which a text is JSON, in whose strings there are escapes."""

_Place = tuple["_Place", str | int] | None
_Found = tuple[Any, str | int, str | None, _Place]


def whole_text(text: str) -> str:
    """The text with U+FFFD in place of halves."""
    return text if text.isascii() else _HALF.sub(REPLACEMENT, text)


def whole_json(text: str) -> str:
    """JSON, complete or not, with U+FFFD in place of halves and of their escapes."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], text)
    return whole_text(text)


class WholeJson:
    """JSON that comes in pieces, with U+FFFD in place of halves and of their escapes."""

    def __init__(self) -> None:
        self._held = ""  # an escape of which more may come

    def feed(self, text: str) -> str:
        """What is known of the JSON after this piece of it."""
        text, self._held = self._held + text, ""
        if "\\" not in text:
            return whole_text(text)
        end = _end_of_escapes(text)
        self._held = text[end:]
        return whole_json(text[:end])

    def finish(self) -> str:
        """The rest, if nothing follows."""
        return whole_json(self._held)


def _end_of_escapes(text: str) -> int:
    """The end of the part whose escapes cannot change by what follows."""
    end = 0
    for found in _ESCAPE.finditer(text):
        end = found.end()
        if len(text) - end < _LONGEST_OPEN:
            rest = text[end:]
            opens = found[0] == "\\u" and _HEX.fullmatch(rest)
            if opens or (found[1] and _LOW_BEGINS.fullmatch(rest)):
                return found.start()
    return len(text) - text.endswith("\\", end)


def whole(value: Any, *, shared: bool) -> tuple[Any, list[str]]:
    """A JSON value with U+FFFD in place of halves, and the paths of the texts that had some.

    `shared`: the value is copied if it has to change.
    """
    if next(_halves([value]), None) is None:
        return value, []
    holder = [deepcopy(value) if shared else value]
    places = []
    for owner, key, text, place in list(_halves(holder)):
        if text is None:
            _rename_keys(owner)
        else:
            owner[key] = text
        places.append(key_text(_path(place)))
    return holder[0], list(dict.fromkeys(filter(None, places)))


def _halves(holder: list[Any]) -> Iterator[_Found]:
    """What has to change, from the outside in: owner, key, new text, and its place.

    Keys of an object come after its values, without a text.
    """
    left: list[tuple[Any, _Place]] = [(holder, None)]
    while left:
        owner, place = left.pop()
        is_object = isinstance(owner, dict)
        for key, value in list(owner.items()) if is_object else enumerate(owner):
            at: _Place = None if owner is holder else (place, key)
            if isinstance(value, str):
                is_json = key in _JSON_TEXTS and value.lstrip()[:1] in ("{", "[")
                text = whole_json(value) if is_json else whole_text(value)
                if text != value:
                    yield owner, key, text, at
            elif isinstance(value, dict | list):
                left.append((value, at))
        if is_object and any(isinstance(key, str) and whole_text(key) != key for key in owner):
            yield owner, "", None, place


def _rename_keys(owner: dict[Any, Any]) -> None:
    """No two keys become one."""
    items = list(owner.items())
    owner.clear()
    for key, value in items:
        name = whole_text(key) if isinstance(key, str) else key
        while name in owner:
            name += REPLACEMENT
        owner[name] = value


def _path(place: _Place) -> KeyPath:
    parts: list[str | int] = []
    while place is not None:
        place, key = place
        parts.append(whole_text(key) if isinstance(key, str) else key)
    return tuple(reversed(parts))
