"""One tool call written as a JSON object."""

import json
import re
from collections.abc import Collection
from enum import Enum, auto

from parsers.json_scanner import JsonScanner, skip, skip_space

_SCALAR = re.compile(r"[^ \t\r\n,}\]]*")


class _Next(Enum):
    OBJECT = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    REST_OF_SCALAR = auto()
    COMMA = auto()
    NOTHING = auto()


class _Role(Enum):
    KEY = auto()
    NAME = auto()
    ARGUMENTS = auto()
    OTHER = auto()


_STEPS = {
    (_Next.OBJECT, "{"): _Next.KEY,
    (_Next.KEY, "}"): _Next.NOTHING,
    (_Next.COLON, ":"): _Next.VALUE,
    (_Next.COMMA, ","): _Next.KEY,
    (_Next.COMMA, "}"): _Next.NOTHING,
}


class CallObject:
    """Reads `{"name": ..., "arguments": ...}` as it arrives, each character once.

    The members of the object itself must be JSON, or it is `over`; so it is when its name is no
    name. Inside a value only brackets and strings are followed: arguments that are not JSON come
    out as written, up to the bracket that closes them.

    Arguments in brackets come out as they arrive. Others come when they are whole, because they
    may stand for something else: a string that holds a JSON object stands for that object, `null`
    and a blank string for `{}`. No arguments at all are `{}` too.
    """

    def __init__(self, name_keys: Collection[str], argument_keys: Collection[str]) -> None:
        self.name: str | None = None
        self.over = False
        self._name_keys = name_keys
        self._argument_keys = argument_keys
        self._next = _Next.OBJECT
        self._key: str | None = None
        self._role = _Role.OTHER
        self._scanner: JsonScanner | None = None
        self._value: list[str] = []
        self._has_arguments = False
        self._arguments: list[str] = []
        self._watched: JsonScanner | None = None

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends in a JSON string."""
        return self._scanner is not None and self._scanner.in_string

    @property
    def sound(self) -> bool | None:
        """Whether the watched string closed as strings do; None while that is unknown."""
        return self._watched.sound if self._watched else True

    def watch(self) -> bool:
        """Makes `sound` tell how the open string turns out, if it is in arguments in brackets."""
        if self._scanner is None or self._value is not self._arguments:
            return False
        self._watched = self._scanner
        self._watched.watch()
        return True

    def feed(self, text: str, at: int) -> int:
        """Reads `text` from `at` up to its end or until the object is over; returns where."""
        while at < len(text) and not self.over:
            if self._scanner is not None:
                at = self._scanner.feed(text, at, self._value)
                if self._scanner.complete:
                    self._end_value()
            elif self._next is _Next.REST_OF_SCALAR:
                end = skip(_SCALAR, text, at)
                self._value.append(text[at:end])
                at = end
                if at < len(text):
                    self._end_value()
            else:
                at = skip_space(text, at)
                if at < len(text):
                    at += self._step(text[at])
        return at

    def take(self) -> str:
        """The arguments that have come since the last time."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def end(self, *, cut_off: bool = False) -> None:
        """Nothing more comes: something stands behind the object, or the text is cut off.

        A call that is cut off keeps the arguments that came and gets no others, not even `{}`: it
        must not look whole.
        """
        unfinished = self._scanner is not None or self._next is _Next.REST_OF_SCALAR
        if unfinished and self._role is _Role.ARGUMENTS:
            self._end_value()
        if not self._has_arguments and not cut_off:
            self._arguments.append("{}")
        self.over = True

    def _step(self, char: str) -> int:
        """Takes one character between values; 0 when it is left to what comes next."""
        if self._next is _Next.VALUE and char not in ",}]":
            return self._begin_value(char)
        if self._next is _Next.KEY and char == '"':
            return self._begin(_Role.KEY, char)
        self._next = _STEPS.get((self._next, char), _Next.NOTHING)
        if self._next is not _Next.NOTHING:
            return 1
        self.end()
        return int(char == "}")

    def _begin_value(self, char: str) -> int:
        if self.name is None and self._key in self._name_keys:
            if char == '"':
                return self._begin(_Role.NAME, char)
            self.end()
            return 0
        if not self._has_arguments and self._key in self._argument_keys:
            self._has_arguments = True
            return self._begin(_Role.ARGUMENTS, char)
        return self._begin(_Role.OTHER, char)

    def _begin(self, role: _Role, char: str) -> int:
        self._role = role
        self._value = self._arguments if role is _Role.ARGUMENTS and char in "{[" else []
        if char in '"{[':
            self._scanner = JsonScanner()
        else:
            self._next = _Next.REST_OF_SCALAR
        return 0

    def _end_value(self) -> None:
        self._scanner = None
        self._next = _Next.COLON if self._role is _Role.KEY else _Next.COMMA
        if self._value is self._arguments:
            return
        text = "".join(self._value)
        if self._role is _Role.KEY:
            self._key = _decode(text)
        elif self._role is _Role.NAME:
            self.name = (_decode(text) or "").strip() or None
            if self.name is None:
                self.end()
        elif self._role is _Role.ARGUMENTS:
            self._arguments.append(_as_arguments(text))


def _as_arguments(text: str) -> str:
    if text == "null":
        return "{}"
    inner = _decode(text)
    if inner is None:
        return text
    if not inner.strip():
        return "{}"
    mended: list[str] = []
    end = JsonScanner().feed(inner, skip_space(inner), mended)
    unwrapped = "".join(mended)
    whole = skip_space(inner, end) == len(inner) and isinstance(_load(unwrapped), dict)
    return unwrapped if whole else text


def _decode(text: str) -> str | None:
    """What a JSON string says; None when it is none, or has half a surrogate pair."""
    value = _load(text)
    if not isinstance(value, str) or any("\ud800" <= char <= "\udfff" for char in value):
        return None
    return value


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
