"""Tool calls that are JSON objects between tags."""

import re
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from enginebay import Parser, Part, Schemas, Span, ToolFormat
from parsers.call_object import CallObject
from parsers.json_scanner import skip
from parsers.parts import Parts
from parsers.splitter import Piece, TagSplitter

_BEFORE_CALLS = re.compile(r"[ \t\r\n\[]*")
_BETWEEN_CALLS = re.compile(r"[ \t\r\n,;\[\]}]*")
_CLOSERS = re.compile(r"[\]}]")


@dataclass(frozen=True, slots=True)
class JsonCalls(ToolFormat):
    """`start`, one or more objects or a list of them, `end`.

    `name_keys`, `argument_keys`: how the members of an object may be called that are the name and
    the arguments; the first one in the object counts. An empty `end` means that there is none.
    """

    start: str
    end: str
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    spans: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", (Span(self.start, self.end, opens_with="{["),))

    def matches(self, template: str) -> bool:
        """Whether the start tag occurs in the chat template."""
        return self.start in template

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice.

        A call is certain when its name is whole; until then what turns out to be none comes back
        as content, tags included. From then on the call stands, whatever follows: what is wrong
        inside its arguments stays in them (`CallObject`), what is wrong outside ends the call and
        comes back as content, its closing brackets and the tag that ends the block dropped.

        A tag outside of JSON strings ends a call. A tag in a string is text. A tag in a string
        that is never closed, as far as what follows can tell, was the end of the call after all.
        """
        return _JsonCallsParser(self)


class _Place(Enum):
    OUTSIDE = auto()
    BEFORE_CALLS = auto()
    CALL = auto()
    BETWEEN_CALLS = auto()


class _JsonCallsParser(Parser):
    """Reads the pieces of the splitter in order, some of them twice.

    `_seen` are the pieces that may have to be read again: those of a call that may be none, or
    those since a tag in a string that may be the end of the call.
    """

    def __init__(self, tags: JsonCalls) -> None:
        self._tags = tags
        self._splitter = TagSplitter((tags.start, tags.end))
        self._parts = Parts()
        self._unread: deque[Piece] = deque()
        self._place = _Place.OUTSIDE
        self._call = self._new_call()
        self._calls = 0
        self._is_call = False
        self._in_doubt = False
        self._end_is_due = False
        self._seen: list[Piece] = []

    def feed(self, text: str) -> list[Part]:
        self._read(self._splitter.feed(text))
        return self._parts.take()

    def finish(self) -> list[Part]:
        self._read(self._splitter.finish())
        while self._place is not _Place.OUTSIDE:
            self._end_of_text()
            self._read([])
        return self._parts.take()

    def _new_call(self) -> CallObject:
        return CallObject(self._tags.name_keys, self._tags.argument_keys)

    def _read(self, pieces: list[Piece]) -> None:
        self._unread.extend(pieces)
        while self._unread:
            piece = self._unread.popleft()
            if not piece.is_tag:
                self._read_text(piece.text)
            elif self._place is _Place.CALL:
                self._read_tag_in_call(piece)
            else:
                self._read_tag(piece)

    def _read_text(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._place is _Place.OUTSIDE:
                self._parts.content(text[at:])
                return
            if self._place is _Place.CALL:
                at = self._read_call(text, at)
            else:
                at = self._read_gap(text, at)

    def _read_gap(self, text: str, at: int) -> int:
        before = self._place is _Place.BEFORE_CALLS
        end = skip(_BEFORE_CALLS if before else _BETWEEN_CALLS, text, at)
        gap = text[at:end]
        self._seen.append(Piece(gap if before else _CLOSERS.sub("", gap)))
        if text.startswith("{", end):
            self._place = _Place.CALL
            self._call = self._new_call()
            self._is_call = self._in_doubt = False
        elif end < len(text):
            return self._give_back(text, end)
        return end

    def _read_call(self, text: str, at: int, *, is_tag: bool = False) -> int:
        call = self._call
        end = call.feed(text, at)
        if self._in_doubt or not self._is_call:
            self._seen.append(Piece(text[at:end], is_tag))
        if self._in_doubt:
            if call.sound is None:
                return end
            if not call.sound:
                return self._end_call_at_tag(text, end)
            self._in_doubt = False
            self._seen.clear()
        if not self._is_call:
            if call.name is None:
                return self._give_back(text, end) if call.over else end
            self._parts.name(self._calls, call.name)
            self._calls += 1
            self._is_call = self._end_is_due = True
            self._seen.clear()
        self._take_arguments()
        return end

    def _take_arguments(self) -> None:
        self._parts.arguments(self._calls - 1, self._call.take())
        if self._call.over:
            self._place = _Place.BETWEEN_CALLS

    def _read_tag_in_call(self, tag: Piece) -> None:
        if self._call.in_string:
            if self._is_call:
                self._in_doubt = self._call.watch()
            self._read_call(tag.text, 0, is_tag=True)
            return
        self._unread.appendleft(tag)
        if self._is_call:
            self._end_call(cut_off=False)
        else:
            self._give_back()

    def _read_tag(self, tag: Piece) -> None:
        if self._place is _Place.BEFORE_CALLS:
            self._parts.content("".join(piece.text for piece in self._seen))
        self._seen.clear()
        if tag.text == self._tags.start:
            self._place = _Place.BEFORE_CALLS
            self._seen.append(tag)
        else:
            self._place = _Place.OUTSIDE
            if not self._end_is_due:
                self._parts.content(tag.text)
        self._end_is_due = False

    def _end_of_text(self) -> None:
        if self._place is _Place.BETWEEN_CALLS:
            self._place = _Place.OUTSIDE
        elif self._place is _Place.BEFORE_CALLS or not self._is_call:
            self._give_back()
        elif self._in_doubt and not "".join(piece.text for piece in self._seen[1:]).strip():
            self._end_call_at_tag()
        else:
            self._end_call(cut_off=True)

    def _end_call(self, *, cut_off: bool) -> None:
        self._call.end(cut_off=cut_off)
        self._take_arguments()

    def _end_call_at_tag(self, text: str = "", at: int = 0) -> int:
        """The tag in a string was the end of the call: reads on from there."""
        self._place = _Place.BETWEEN_CALLS
        return self._read_again(text, at)

    def _give_back(self, text: str = "", at: int = 0) -> int:
        """This is no call: reads it again, as text outside of calls."""
        if not self._end_is_due:
            start_tag, *self._seen = self._seen
            self._parts.content(start_tag.text)
        self._place = _Place.OUTSIDE
        return self._read_again(text, at)

    def _read_again(self, text: str, at: int) -> int:
        self._unread.appendleft(Piece(text[at:]))
        self._unread.extendleft(reversed(self._seen))
        self._seen.clear()
        return len(text)
