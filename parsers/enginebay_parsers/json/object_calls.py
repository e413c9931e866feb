"""Tool calls that are JSON objects between tags."""

import json
import re
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum, auto
from typing import ClassVar

from enginebay_parsers.json.base import JsonFormat
from enginebay_parsers.json.call import Call, decode, load
from enginebay_parsers.json.syntax import Layout
from enginebay_parsers.stream.json_scanner import JsonScanner, skip, skip_space

_REST_OF_SCALAR = re.compile(r"[^ \t\r\n,}\]]*")
_BETWEEN = re.compile(r"[ \t\r\n,;\[\]}]*")
_BETWEEN_FENCED = re.compile(r"[ \t\r\n,;\[\]}`]*")
# How values of one line are written.
_STRING = r'"(?:[^"\\]|\\(?s:.))*"'
_SCALAR = r'[^ \t\r\n"{\[,}\]][^ \t\r\n,}\]]*'

IN_FRONT = frozenset({"type", "id", "index"})
"""Members that may stand in front of the name where a call has no start tag."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What the members of a call may be called; the first one in the object counts.

    No `name`: the name is itself the key of the arguments. `bare`: nothing else shows that this is
    a call, so only `IN_FRONT` with plain values may stand in front of the name, and neither it nor
    the keys have escapes.
    """

    name: tuple[str, ...]
    arguments: tuple[str, ...]
    id: tuple[str, ...] = ()
    bare: bool = False

    def allow_in_front(self, key: str) -> bool:
        """Whether such a member, its key as written, may stand in front of the name, or is it."""
        return not self.bare or key[1:-1] in {*self.name, *self.id, *IN_FRONT}


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
    ID = auto()
    ARGUMENTS = auto()
    OTHER = auto()


_STEPS = {
    (_Next.OBJECT, "{"): _Next.KEY,
    (_Next.KEY, "}"): _Next.NOTHING,
    (_Next.COLON, ":"): _Next.VALUE,
    (_Next.COMMA, ","): _Next.KEY,
    (_Next.COMMA, "}"): _Next.NOTHING,
}


class CallObject(Call):
    """Reads `{"name": ..., "arguments": ...}` as it arrives.

    The members of the object itself must be JSON, or it is `over`; so it is when its name is no
    name. Inside a value only brackets and strings are followed: arguments that are not JSON come
    out as written, up to the bracket that closes them.

    Arguments in brackets come out as they arrive. Others come when they are whole, because they
    may stand for something else: a string that holds a JSON object stands for that object, `null`
    and a blank string for `{}`. No arguments at all are `{}` too.

    An id counts if it stands before the arguments: the name waits for it, the arguments do not.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys
        self._next = _Next.OBJECT
        self._key: str | None = None
        self._name: str | None = None
        self._role = _Role.OTHER
        self._value: list[str] = []
        self._has_arguments = False

    def feed(self, text: str, at: int) -> int:
        while at < len(text) and not self.over:
            if self._scanner is not None:
                at = self._scanner.feed(text, at, self._value)
                if self._scanner.complete:
                    self._end_value()
            elif self._next is _Next.REST_OF_SCALAR:
                end = skip(_REST_OF_SCALAR, text, at)
                self._value.append(text[at:end])
                at = end
                if at < len(text):
                    self._end_value()
            else:
                at = skip_space(text, at)
                if at < len(text):
                    at += self._step(text[at])
        return at

    def end(self, *, cut_off: bool = False) -> None:
        unfinished = self._scanner is not None or self._next is _Next.REST_OF_SCALAR
        if unfinished and self._role is _Role.ARGUMENTS:
            self._end_value()
        if not self._has_arguments and not cut_off:
            self._arguments.append("{}")
        self.name = self._name
        self.over = True

    def _in_arguments(self) -> bool:
        return self._value is self._arguments

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
        if self._name is None and (not self._keys.name or self._key in self._keys.name):
            return self._begin_named(char)
        if not self._has_arguments and self._key in self._keys.arguments:
            return self._begin_arguments(char)
        if self.id is None and self._key in self._keys.id:
            return self._begin(_Role.ID, char)
        if self._keys.bare and self._name is None and char in "{[":
            self.end()
            return 0
        return self._begin(_Role.OTHER, char)

    def _begin_named(self, char: str) -> int:
        """Begins the name, or the arguments after a key that is the name."""
        if self._keys.name and char == '"':
            return self._begin(_Role.NAME, char)
        if not self._keys.name and char == "{":
            self._set_name(self._key)
            return 0 if self.over else self._begin_arguments(char)
        self.end()
        return 0

    def _begin_arguments(self, char: str) -> int:
        self._has_arguments = True
        self.name = self._name
        return self._begin(_Role.ARGUMENTS, char)

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
            self._key = decode(text)
            if self._name is None and not self._keys.allow_in_front(text):
                self.end()
        elif self._role is _Role.NAME:
            self._set_name(None if self._keys.bare and "\\" in text else decode(text))
        elif self._role is _Role.ID:
            self._set_id(text)
        elif self._role is _Role.ARGUMENTS:
            self._arguments.append(_as_arguments(text))

    def _set_name(self, name: str | None) -> None:
        self._name = (name or "").strip() or None
        if self._name is None:
            self.end()
        elif not self._keys.id or self.id is not None or self._has_arguments:
            self.name = self._name

    def _set_id(self, text: str) -> None:
        if self.name is None:
            written = text if text.isdigit() else decode(text) or ""
            self.id = written.strip() or None
            self.name = self._name


def _as_arguments(text: str) -> str:
    if text == "null":
        return "{}"
    inner = decode(text)
    if inner is None:
        return text
    if not inner.strip():
        return "{}"
    mended: list[str] = []
    end = JsonScanner().feed(inner, skip_space(inner), mended)
    unwrapped = "".join(mended)
    whole = skip_space(inner, end) == len(inner) and isinstance(load(unwrapped), dict)
    return unwrapped if whole else text


@dataclass(frozen=True)
class JsonCalls(JsonFormat):
    """`start`, one or more objects or a list of them, `end`.

    `name_keys`, `argument_keys`, `id_keys`: how the members of an object may be called that are the
    name, the arguments and the id; the first one in the object counts. No name keys: an object's
    only key is the name.
    """

    _: KW_ONLY
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ()

    before: ClassVar[re.Pattern[str]] = re.compile(r"[ \t\r\n\[]*")
    begins_with: ClassVar[str] = "{"

    @property
    def between(self) -> re.Pattern[str]:
        """White space, and what comes between the objects of a list or after one too many."""
        return _BETWEEN_FENCED if self.fence else _BETWEEN

    @property
    def _layout(self) -> Layout:
        if self.layout.calls:
            return self.layout
        name = f'"{self.name_keys[0]}": ' if self.name_keys else ""
        arguments = f', "{self.argument_keys[0]}"' if self.name_keys else ""
        return replace(self.layout, calls=(f'{{{name}"$name"{arguments}: $arguments}}',))

    def _written_name(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False)[1:-1]

    def _bare_name(self, name: str) -> str:
        space = r"[ \t\r\n]*"
        others, names = "|".join(sorted(IN_FRONT)), "|".join(self.name_keys)
        other = f'"(?:{others})"{space}:{space}(?:{_STRING}|{_SCALAR}){space},{space}'
        written = re.escape(self._written_name(name))
        return (
            rf"[ \t\r\n\[]*\{{{space}(?:{other})*"
            rf'"(?:{names})"{space}:{space}"\s*{written}\s*"'
        )

    def _new_call(self) -> Call:
        keys = Keys(self.name_keys, self.argument_keys, self.id_keys, bare=self.bare)
        return CallObject(keys)
