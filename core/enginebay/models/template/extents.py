"""How large the results of operators, filters and methods are, told before they are made."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import TemplateRuntimeError

MOST_BYTES = 64 * 2**20
"""The most that one rendering writes, and the largest text or list that it makes on the way."""
_MOST_BITS = 2**17  # of an integer; Python writes no longer ones than 4300 digits
_ITEM = 8  # bytes that an item of a list takes, beside the item
_NESTED = 32  # bytes that a value in a list counts as written, at least
_PERCENT_WIDTH = re.compile(r"%(?:\([^)%]*\))?[^a-zA-Z%]*(?:\*|\d{7})")
_BRACE_WIDTH = re.compile(r"\{[^{}:]*:[^{}]*(?:\{|\d{7})")

Extent = Callable[..., int]
"""An upper bound of the length of what a filter or method returns, from the same arguments."""


class TemplateLimitError(TemplateRuntimeError):
    """A template that was stopped because it writes too much or takes too long."""


def check(size: int) -> None:
    """Stop a template that makes something of this size."""
    if size > MOST_BYTES:
        raise TemplateLimitError(f"it writes more than {MOST_BYTES // 2**20} MiB")


def utf8_bytes(text: Any) -> int:
    """The length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def length(value: Any) -> int:
    """The length of a text, or the size of a list without its items; of others 0."""
    if isinstance(value, str | bytes):
        return len(value)
    return _ITEM * len(value) if isinstance(value, list | tuple | dict) else 0


def written(value: Any) -> int:
    """The length of a value as text, at least; stops at what is too large.

    Lists can hold the same value many times: what is small to keep may be endless to write.
    """
    if isinstance(value, str | bytes):
        return len(value)
    size, left = 0, [value]
    while left and size <= MOST_BYTES:
        each = left.pop()
        size += _NESTED + (len(each) if isinstance(each, str | bytes) else 0)
        if isinstance(each, Mapping):
            left += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            left += each
    return size


def extent_of(extent: Extent, *args: Any, **kwargs: Any) -> int:
    """`extent` of these arguments; 0 if the call itself will fail, with Jinja's own words."""
    try:
        return extent(*args, **kwargs)
    except (TypeError, AttributeError):
        return 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _multiply(left: Any, right: Any) -> None:
    check(length(left) * _number(right))
    check(length(right) * _number(left))
    _check_bits(_number(left).bit_length() + _number(right).bit_length())


def _power(left: Any, right: Any) -> None:
    _check_bits(_number(left).bit_length() * _number(right))


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TemplateLimitError("it computes a number of too many digits")


def _modulo(left: Any, right: Any) -> None:
    if isinstance(left, str | bytes):
        check(_percent_formatted(left, right))


OPERATORS: Mapping[str, Callable[[Any, Any], None]] = {
    "*": _multiply,
    "%": _modulo,
    "**": _power,
}
"""Checks of operands, before an operator is used."""


def text_extent(value: Any, *args: Any, **kwargs: Any) -> int:
    """Of writing the value itself, as `string` and `tojson` do."""
    return written(value)


def _padded(value: Any, *args: Any, **kwargs: Any) -> int:
    """Of padding to a width: `center`, `zfill`, `to_bytes`."""
    return length(value) + max(map(_number, (0, *args, *kwargs.values())))


def _spread(value: Any, *args: Any, **kwargs: Any) -> int:
    """Of repeating texts at any place of the value."""
    return length(value) * (1 + sum(map(length, (*args, *kwargs.values()))))


def _expanded(value: Any, tabsize: Any = 8) -> int:
    return length(value) + int(value.count("\t")) * _number(tabsize)


def _indented(value: Any, *args: Any, **kwargs: Any) -> int:
    """Of adding an argument to each line."""
    each = sum(length(arg) + _number(arg) for arg in (*args, *kwargs.values()))
    return length(value) + (int(value.count("\n")) + 1) * each


def _replaced(value: Any, old: Any, new: Any, count: Any = None) -> int:
    times = value.count(old) if isinstance(value, bytes) else str(value).count(str(old))
    return length(value) + times * length(new)


def _joined(value: Any, d: Any = "", attribute: Any = None) -> int:
    items = list(value)
    return sum(map(written, items)) + len(items) * length(d)


def _summed(value: Any, attribute: Any = None, start: Any = 0) -> int:
    """Of adding lists: each is copied with all before it."""
    return sum(map(length, value)) * len(value)


def _percent_formatted(form: Any, *args: Any, **kwargs: Any) -> int:
    """Of `%`. Widths that are computed or above a million are refused."""
    return _formatted(_PERCENT_WIDTH, "%", form, *args, **kwargs)


def _brace_formatted(form: Any, *args: Any, **kwargs: Any) -> int:
    """Of `str.format`, likewise."""
    return _formatted(_BRACE_WIDTH, "{", form, *args, **kwargs)


def _formatted(width: re.Pattern[str], mark: str, form: Any, *args: Any, **kwargs: Any) -> int:
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    if width.search(text):
        raise TemplateLimitError("it formats text to a computed width, or one above 999999")
    values = [*args, *kwargs.values()]
    for value in args:
        values += value.values() if isinstance(value, dict) else ()
        values += value if isinstance(value, tuple) else ()
    return len(text) + text.count(mark) * max(map(written, values), default=0)


def _translated(value: Any, table: Any = None, *rest: Any) -> int:
    values = table.values() if isinstance(table, dict) else ()
    return length(value) * max(map(length, values), default=1)


FILTERS: Mapping[str, Extent] = {
    "batch": _padded,
    "center": _padded,
    "format": _percent_formatted,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "round": lambda value, precision=0, *_, **__: 2 ** min(_number(precision), 40),
    "pprint": text_extent,
    "slice": _padded,
    "string": text_extent,
    "sum": _summed,
    "truncate": _padded,
    "urlize": _spread,
    "wordwrap": _spread,
}
"""Of the filters that can make much of little."""
METHODS: Mapping[str, Extent] = {
    "center": _padded,
    "expandtabs": _expanded,
    "format": _brace_formatted,
    "format_map": _brace_formatted,
    "join": lambda separator, items: _joined(items, separator),
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "to_bytes": _padded,
    "translate": _translated,
    "zfill": _padded,
}
"""Of the methods of texts, bytes and integers that can."""
