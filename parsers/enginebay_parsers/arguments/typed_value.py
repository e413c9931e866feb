"""A value written as plain text, with its type from a schema."""

import json
import re

from enginebay_parsers.stream.json_scanner import json_escaped, json_string
from enginebay_parsers.stream.literal_scanner import LiteralScanner
from enginebay_parsers.stream.literal_words import PYTHON_QUOTES

_TYPES = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_WORDS = {"null": ("null", "None"), "boolean": ("true", "True", "false", "False")}
_DIGITS = re.compile(r"-?[0-9.eE+-]*")
# No number or word that stands for something else than text is longer.
_LONGEST_WORD = 40


class TypedValue:
    """The JSON of one value, as its text arrives.

    `types`: what the schema allows, empty if it does not say. `is_text`: what the syntax
    itself says, which counts where the schema leaves it open; where neither says anything, the
    value is text. Text comes out as it arrives. Anything else comes when it is whole; if it turns
    out not to be what it should be, as text after all, so that it is JSON in any case. A value
    that may be text or something else is that something else if it can be read as such.
    """

    def __init__(self, types: frozenset[str], *, is_text: bool | None = None) -> None:
        self._others = types - {"string"}
        self._is_text: bool | None = "string" in types
        if not types:
            self._is_text = is_text is not False
        elif self._is_text and self._others:
            self._is_text = is_text
        self._may_be_text = self._is_text is not False
        self._held: list[str] = []
        self._word = ""
        self._opened = False

    @property
    def comes_whole(self) -> bool:
        """Whether this is not a string, so that nothing is certain before its end."""
        return self._is_text is False

    def feed(self, text: str) -> str:
        """The JSON that is certain now."""
        if self._is_text:
            return self._text(text)
        self._held.append(text)
        if self._is_text is None and not self._could_be_another(text):
            self._is_text = True
            return self._text("".join(self._held))
        return ""

    def end(self) -> str:
        """The rest of the JSON."""
        if self._is_text:
            return f'{self._text("")}"'
        text = "".join(self._held)
        return _as_one_of(self._others, text, exactly=self._may_be_text) or json_string(text)

    def cut_off(self) -> str:
        """The partial value, if its end never comes."""
        if self._may_be_text:
            return "" if self._is_text else self._text("".join(self._held))
        return "".join(self._held).strip()

    def _text(self, text: str) -> str:
        quote = "" if self._opened else '"'
        self._opened = True
        return quote + json_escaped(text)

    def _could_be_another(self, text: str) -> bool:
        """Whether the value so far may be something other than a string."""
        if not self._word:
            text = text.lstrip()
        elif len(self._word) > _LONGEST_WORD:
            return self._word[0] in "{["
        self._word += text
        word = self._word.rstrip()
        if not word:
            self._word = ""
            return True
        if word[0] in "{[":
            return _TYPES[word[0]] in self._others
        if "number" in self._others and _DIGITS.fullmatch(word):
            return len(word) <= _LONGEST_WORD
        words = (known for type in self._others for known in _WORDS.get(type, ()))
        return any(known.startswith(word) for known in words)


def _as_one_of(types: frozenset[str], text: str, *, exactly: bool) -> str | None:
    """What `text` reads as: JSON, or else a Python literal, as some templates write values.

    `exactly`: only if it is of one of these types. Otherwise anything will do, but where a string
    stands for one of these types, as in `"[1, 2]"`, it is what the string reads as.
    """
    read = _as_json(text.strip())
    if read is None or _type(read) in types or not types:
        return read
    if exactly:
        return None
    inner = _as_json(json.loads(read).strip()) if _type(read) == "string" else None
    return inner if inner is not None and _type(inner) in types else read


def _type(json_text: str) -> str:
    return _TYPES.get(json_text[0], "number")


def _as_json(text: str) -> str | None:
    try:
        json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return python_literal(text)
    return text


def _no_json(constant: str) -> None:
    raise ValueError(constant)


def python_literal(text: str) -> str | None:
    """The JSON of a Python literal; None if `text` is not one."""
    scanner = LiteralScanner(PYTHON_QUOTES)
    end = scanner.feed(text, 0, final=True)
    scanner.finish()
    whole = end == len(text) and scanner.complete and scanner.exact
    return scanner.take() if whole else None
