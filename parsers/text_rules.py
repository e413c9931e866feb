"""What a JSON Schema asks of a string, for grammars that write strings without quotes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from parsers.schema_part import Branch
from parsers.search_pattern import length_pattern, search_pattern
from parsers.text_formats import FORMATS


@dataclass(frozen=True, slots=True)
class TextRules:
    """`values`: the only ones allowed; None: all that each of the `patterns` matches as a whole."""

    values: tuple[str, ...] | None
    patterns: tuple[str, ...]


def text_rules(branches: Iterable[Branch]) -> list[TextRules]:
    """The rules for strings, for each way to be a string. `SchemaError` for what is none."""
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
