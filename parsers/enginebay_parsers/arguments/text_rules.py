"""A JSON Schema's constraints on a string, for grammars that write strings without quotes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from enginebay_parsers.arguments.search_pattern import length_pattern, search_pattern
from enginebay_parsers.arguments.subschema import Branch

_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    rf"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_PATH = r"[A-Za-z0-9._~!$&'()*+,;=:@-]"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,9}W|[0-9]{1,9}D|(?:[0-9]{1,9}D)?T(?:[0-9]{1,9}H(?:[0-9]{1,9}M)?"
    r"(?:[0-9]{1,9}S)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))",
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(?:\.[A-Za-z0-9_+-]{{1,31}})?@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": rf"{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{7}}",
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}://{_HOST}(?::[0-9]{{1,4}})?(?:/{_PATH}*)*"
    rf"(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#{_PATH}*)?",
}


@dataclass(frozen=True, slots=True)
class TextRules:
    """`values`: the only ones allowed; None: all that each of the `patterns` matches as a whole."""

    values: tuple[str, ...] | None
    patterns: tuple[str, ...]


def text_rules(branches: Iterable[Branch]) -> list[TextRules]:
    """The rules for strings, for each way to be a string. `SchemaError` if unsupported."""
    return [_rules(branch) for branch in branches if "string" in branch.types]


def _rules(branch: Branch) -> TextRules:
    branch.refuse("not", "if", "$dynamicRef", "$recursiveRef")
    values = branch.values()
    patterns = tuple(_patterns(branch))
    if values is None:
        return TextRules(None, patterns)
    texts = [value for value in values if isinstance(value, str)]
    return TextRules(tuple(text for text in texts if _keeps_to(branch, text)), ())


def _patterns(branch: Branch) -> Iterable[str]:
    for part, pattern in branch.said("pattern"):
        try:
            yield search_pattern(str(pattern))
        except ValueError as error:
            raise part.error(str(error), "pattern") from None
    yield from _formats(branch)
    least, most = _length(branch)
    if least or most is not None:
        yield length_pattern(least, most)


def _formats(branch: Branch) -> Iterable[str]:
    for part, name in branch.said("format"):
        if str(name) not in FORMATS:
            raise part.error(f"the format {name!r} is not known", "format")
        yield FORMATS[str(name)]


def _length(branch: Branch) -> tuple[int, int | None]:
    least = [int(n) for _, n in branch.said("minLength") if isinstance(n, int | float)]
    most = [int(n) for _, n in branch.said("maxLength") if isinstance(n, int | float)]
    for part, _ in branch.said("maxLength"):
        if max(least, default=0) > min(most):
            raise part.error("no string is so short and so long", "maxLength")
    return max(least, default=0), min(most, default=None)


def _keeps_to(branch: Branch, text: str) -> bool:
    least, most = _length(branch)
    patterns = (str(pattern) for _, pattern in branch.said("pattern"))
    return (
        least <= len(text)
        and (most is None or len(text) <= most)
        and all(re.search(pattern, text) for pattern in patterns)
        and all(re.fullmatch(pattern, text) for pattern in _formats(branch))
    )
