"""The words, numbers, quotes and escapes of Python's literals."""

import json
import math
import re
import unicodedata
from dataclasses import dataclass

ESCAPE = re.compile(
    r"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[\w -]{1,99}\}|.)", re.S
)
ESCAPE_BEGINS = re.compile(
    r"\\([0-7]{0,2}|x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|N(\{[\w -]{0,99})?)\Z"
)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER = re.compile(r"[+-]?[0-9.][0-9a-zA-Z_.+-]*", re.A)

_ESCAPES = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES |= {char: char for char in "\\'\""}
_WORDS = {"None": "null", "True": "true", "False": "false"}
_WORDS |= {word: word for word in _WORDS.values()}


@dataclass(frozen=True, slots=True)
class Quote:
    """What strings stand between. Without escapes, they are as written up to the mark."""

    mark: str
    escapes: bool = True

    def may_begin(self, text: str, at: int) -> bool:
        """Whether the end of `text` from `at` on may become the mark."""
        return len(text) - at < len(self.mark) and self.mark.startswith(text[at:])


# The longer ones first, since the shorter ones are how they begin.
PYTHON_QUOTES = (Quote("'''"), Quote('"""'), Quote("'"), Quote('"'))


def unescape(escape: str) -> str:
    """The text of what comes after a backslash; with the backslash if that means nothing."""
    match escape[0]:
        case "x" | "u" | "U" if len(escape) > 1:
            code = int(escape[1:], 16)
            return chr(code) if code < 0x110000 else f"\\{escape}"
        case "N" if len(escape) > 1:
            try:
                return unicodedata.lookup(escape[2:-1])
            except KeyError:
                return f"\\{escape}"
        case digit if digit in "01234567":
            return chr(int(escape, 8))
        case char:
            return _ESCAPES.get(char, f"\\{char}")


def scalar(text: str) -> str | None:
    """The JSON of a word or a number; None when it is neither, or one that JSON does not know."""
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] in ("+", "-"):
        text = text[0] + text[1:].lstrip()
    if _JSON_NUMBER.fullmatch(text):
        return text
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return str(int(text, 0))
    except ValueError:
        pass
    try:
        number = float(text) if re.search("[.eE]", text) else math.nan
    except ValueError:
        return None
    return json.dumps(number) if math.isfinite(number) else None
