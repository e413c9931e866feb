"""Tool calls with the name before the JSON."""

import re
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto

from enginebay_parsers.json.base import JsonFormat
from enginebay_parsers.json.call import Call
from enginebay_parsers.json.syntax import SPACE
from enginebay_parsers.stream.json_scanner import JsonScanner

_LONGEST_HEAD = 256
_FENCE = "```"
_FENCE_END = re.compile(r"[ \t\r\n`]*")
_IN_FIELD = re.compile(r"[^\s\"'`{}<>()\[\],;=]")
_NAME_IN_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


class Field(Enum):
    """A field in the head of a call. An `ID_WITH_NAME` is like `functions.weather:0`. A `KIND` is
    ignored.
    """

    NAME = auto()
    ID = auto()
    ID_WITH_NAME = auto()
    KIND = auto()
    ARGUMENTS = auto()


@dataclass(frozen=True, slots=True)
class Head:
    """What precedes the JSON: `first`, then each field after its mark.

    Any mark but the one in front of the name may be left out, together with its field.

    `fence`: what may stand between the last mark and the JSON. `content_name`: a name that means
    that no arguments follow, but content.
    """

    first: Field
    marks: tuple[tuple[str, Field], ...]
    fence: str = ""
    content_name: str = ""


class NamedCall(Call):
    """Reads a head and the JSON object after it as they arrive.

    A call is certain when its object begins. Where `needs_object` is false, the mark in front of
    that may be missing, and a call that ends after its last mark has no arguments, which are `{}`.
    """

    def __init__(self, head: Head, *, needs_object: bool) -> None:
        super().__init__()
        self._head = head
        self._needs_object = needs_object
        self._marks = head.marks
        self._field = head.first
        self._value = ""
        self._rest = ""
        self._length = 0
        self._name: str | None = None
        self._id: str | None = None

    def feed(self, text: str, at: int) -> int:
        while at < len(text) and not self.over:
            if self._scanner is None:
                at += self._read_head(text[at])
            else:
                at = self._scanner.feed(text, at, self._arguments)
                self.over = self._scanner.complete
        return at

    def end(self, *, cut_off: bool = False) -> None:
        complete = self._field is Field.ARGUMENTS and not self._needs_object
        if complete and self._scanner is None and not self.over:
            self.name, self.id = self._name, self._id
            if not cut_off:
                self._arguments.append("{}")
        self.over = True

    def _in_arguments(self) -> bool:
        return True

    def _read_head(self, char: str) -> int:
        """Takes one character of the head; 0 when it is left to what comes next."""
        self._length += 1
        if char == "{" and self._head_ends():
            self.name, self.id = self._name, self._id
            self._scanner = JsonScanner()
            return 0
        if self._length > _LONGEST_HEAD:
            self.over = True
        elif self._field is Field.ARGUMENTS:
            self._rest += char
            self.over = not self._head.fence.startswith(self._rest.strip())
        elif not self._rest and _IN_FIELD.match(char):
            self._value += char
        elif self._value or not char.isspace():
            self._rest += char
            self._read_mark()
        return int(not self.over or self.is_content)

    def _head_ends(self) -> bool:
        """Whether the JSON may begin here."""
        if self._field is Field.ARGUMENTS:
            return self._rest.strip() in ("", _FENCE, self._head.fence)
        if self._needs_object or self._rest.strip():
            return False
        if any(field is Field.NAME for _, field in self._marks):
            return False
        self._end_field()
        return self._name is not None

    def _read_mark(self) -> None:
        """Ends the field if its mark is complete, and the call if this becomes no mark."""
        rest = self._rest.lstrip(" ")
        self.over = True
        for number, (mark, field) in enumerate(self._marks):
            if mark == rest or mark == self._rest:
                self._end_field()
                self._marks = self._marks[number + 1 :]
                self._field = field
                self.is_content = field is Field.ARGUMENTS and self._name == self._head.content_name
                self.over = self.is_content or (field is Field.ARGUMENTS and self._name is None)
                return
            if mark.startswith(rest):
                self.over = False
            if field is Field.NAME:
                return

    def _end_field(self) -> None:
        value, self._value, self._rest = self._value or None, "", ""
        if self._field is Field.NAME:
            self._name = value
        elif self._field is Field.ID:
            self._id = value
        elif self._field is Field.ID_WITH_NAME and value:
            match = _NAME_IN_ID.fullmatch(value)
            self._id, self._name = value, match.group(1) if match else None


@dataclass(frozen=True)
class NamedCalls(JsonFormat):
    """`start`, the head of a call, a JSON object, `end`, any number of times.

    `first`, `marks`, `content_name`: the head, see `Head`.
    """

    _: KW_ONLY
    first: Field = Field.NAME
    marks: tuple[tuple[str, Field], ...]
    content_name: str = ""

    @property
    def _content_name(self) -> str:
        return self.content_name

    def syntax(self) -> tuple[str, ...]:
        """All tags, the marks in the head of a call, and the layout."""
        return (*super().syntax(), *(mark for mark, _ in self.marks))

    def _written_name(self, name: str) -> str:
        return name

    def _bare_name(self, name: str) -> str:
        return rf"[\s\x1c-\x1f]*{re.escape(name)} *\n"

    @property
    def between(self) -> re.Pattern[str]:
        """White space, and the end of the fence."""
        return _FENCE_END if self.fence else SPACE

    def _new_call(self) -> Call:
        head = Head(self.first, self.marks, self.fence, self.content_name)
        return NamedCall(head, needs_object=self.bare)
