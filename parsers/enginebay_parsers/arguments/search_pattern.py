"""Regular expressions of JSON Schema in the syntax of Rust's regex crate.

https://json-schema.org/draft/2020-12/json-schema-core#name-regular-expressions
https://docs.rs/regex/latest/regex/#syntax
"""

import re

_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\t\n\x0b\x0c\r \xa0\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}"
    r"\u{3000}\u{feff}",
}
_TOKEN = re.compile(
    r"""\\(?:u\{(?P<long>[0-9a-fA-F]{1,6})\}|u(?P<code>[0-9a-fA-F]{4})|x[0-9a-fA-F]{2}|.)
    | \(\?(?P<group>[:=!<]|P<) | . """,
    re.VERBOSE | re.DOTALL,
)
_ANY = "(?s:.*)"
# What comes for the ends of the text while a pattern is being read.
_BEGIN, _END = "\0", "\1"


def search_pattern(pattern: str) -> str:
    """A pattern that matches any text in which `pattern` is found.

    `ValueError` for lookarounds and backreferences.
    """
    alternatives, depth, in_class = [""], 0, False
    for found in _TOKEN.finditer(pattern):
        token = found[0]
        if in_class:
            in_class = token != "]"
            alternatives[-1] += _in_class(token)
        elif token == "|" and not depth:
            alternatives.append("")
        elif token in "^$":
            at_edge = not alternatives[-1] if token == "^" else found.end() in _ends(pattern)
            if depth or not at_edge:
                raise ValueError(f"`{token}` can only be enforced at the ends")
            alternatives[-1] += _BEGIN if token == "^" else _END
        else:
            if found["group"] not in (None, ":"):
                raise ValueError(f"`{token}` cannot be enforced")
            depth += (token[0] == "(") - (token == ")")
            in_class = token == "["
            alternatives[-1] += _outside(token)
    return f"(?:{'|'.join(map(_anchored, alternatives))})"


def length_pattern(least: int, most: int | None) -> str:
    """A pattern that matches every text of that many characters."""
    return f"(?s:.{{{least},{'' if most is None else most}}})"


def _ends(pattern: str) -> set[int]:
    """Where an alternative may end."""
    return {len(pattern), *(found.start() for found in re.finditer(r"\|", pattern))}


def _anchored(alternative: str) -> str:
    head = "" if alternative.startswith(_BEGIN) else _ANY
    tail = "" if alternative.endswith(_END) else _ANY
    return f"{head}{alternative.strip(_BEGIN + _END)}{tail}"


def _outside(token: str) -> str:
    if token == "\\":
        raise ValueError("a backslash stands at the end")
    if token == ".":
        return r"[^\n\r\u{2028}\u{2029}]"
    if token[0] == "\\" and token[1].lower() in _CLASSES:
        return f"[{'^' if token[1].isupper() else ''}{_CLASSES[token[1].lower()]}]"
    return _escape(token)


def _in_class(token: str) -> str:
    if token in "[&~":
        return f"\\{token}"
    if token[0] == "\\" and token[1:].lower() in _CLASSES:
        inside = _CLASSES[token[1].lower()]
        return f"[^{inside}]" if token[1].isupper() else inside
    if token == r"\b":
        return r"\x08"
    return _escape(token)


def _escape(token: str) -> str:
    if len(token) < 2 or token[0] != "\\":
        return token
    if token[1] == "u" and len(token) > 2:
        return rf"\u{{{token[2:].strip('{}')}}}"
    if token[1] in "nrtfv" or token[1] == "x":
        return token
    if token[1] == "0":
        return r"\x00"
    if token[1].isalnum():
        raise ValueError(f"`{token}` cannot be enforced")
    return re.escape(token[1])
