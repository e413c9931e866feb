"""Regular expressions as clients write them (ECMA-262, Python), for the engine (Rust's regex)."""

import re

# A class, an escape, the opening of a group, a quantifier, or one character.
_PIECES = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|\\(?:[xu]\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[pP]\{[^}]*\}|.)"
    r"|\((?:\?(?:P?<[^>=!]*>|P[=>]|<[=!]|[=!>(]|[a-zA-Z-]*[:)]?))?"
    r"|\{\d*(?:,\d*)?\}|.",
    re.DOTALL,
)
_REFUSED = {
    "(?=": "lookahead",
    "(?!": "lookahead",
    "(?<=": "lookbehind",
    "(?<!": "lookbehind",
    "(?P=": "a backreference",
    "(?>": "an atomic group",
    "(?(": "a condition",
    r"\b": "a word boundary",
    r"\B": "a word boundary",
}
_CODE = re.compile(r"\\[xuU]\{?([0-9A-Fa-f]+)\}?")
_NAMED = {r"\a": 7, r"\v": 11}
_WITH_SHORT_ESCAPE = (8, 9, 10, 12, 13)
_STARTS, _ENDS = ("^", r"\A"), ("$", r"\Z", r"\z")


def string_regex(pattern: str) -> str:
    """The `pattern` of a JSON string for the engine.

    `ValueError` for what it does not implement, and for control characters by themselves, which it
    would leave out.
    """
    pieces = _pieces(pattern)
    for piece in pieces:
        alone = piece[1:-1] if len(piece) > 2 and piece[0] == "[" else piece
        if _is_control(alone):
            raise ValueError(f"the control character {piece!a} cannot be generated")
    return "".join(pieces)


def text_regex(pattern: str) -> str:
    r"""A pattern that a whole text must match, without anchors at its ends.

    `ValueError` for what the engine does not implement.
    """
    pieces = _pieces(pattern)
    kept, depth = [], 0
    for i, piece in enumerate(pieces):
        depth += piece.startswith("(") - (piece == ")")
        first = depth == 0 and (i == 0 or pieces[i - 1] == "|")
        last = depth == 0 and (i + 1 == len(pieces) or pieces[i + 1] == "|")
        if (first and piece in _STARTS) or (last and piece in _ENDS):
            continue
        if piece in _STARTS + _ENDS:
            raise ValueError(f"the anchor {piece} is not at the start or end of the pattern")
        kept.append(piece)
    return "".join(kept)


def _pieces(pattern: str) -> list[str]:
    return [_translated(piece) for piece in _PIECES.findall(pattern)]


def _translated(piece: str) -> str:
    if name := _REFUSED.get(piece):
        raise ValueError(f"{piece} in a pattern: {name} is not supported")
    if len(piece) == 2 and piece[0] == "\\" and piece[1] in "123456789":
        raise ValueError(f"{piece} in a pattern: a backreference is not supported")
    if piece == "\\":
        raise ValueError("a pattern cannot end with a backslash")
    if piece.startswith("{,") and piece != "{,}":
        raise ValueError(f"{piece} in a pattern: write {{0{piece[1:]}")
    if piece in ("{}", "{,}"):
        return "\\" + piece
    if piece[0] == "[" and len(piece) > 2:  # no sets within sets, which Rust has
        inner = re.sub(r"\\.|\[|&&|--|~~", _without_sets, piece[1:-1], flags=re.DOTALL)
        return f"[{inner}]"
    return {r"\<": "<", r"\>": ">", r"\0": r"\x00", "{": r"\{"}.get(piece, piece)


def _without_sets(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "\\":
        return r"\x08" if text == r"\b" else text
    return "\\" + "\\".join(text)


def _is_control(piece: str) -> bool:
    code = _CODE.fullmatch(piece)
    number = int(code[1], 16) if code else _NAMED.get(piece, ord(piece) if len(piece) == 1 else 32)
    return (number < 32 or number == 127) and number not in _WITH_SHORT_ESCAPE
