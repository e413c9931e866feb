"""Messages with headers, as written by models with several channels."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from enginebay_parsers.stream.json_scanner import JsonScanner, skip_space
from enginebay_parsers.stream.splitter import Piece, TagSplitter

# A header longer than this, or of several lines, lacks the tag at its end.
_LONGEST_HEADER = 200
# A header that the end of the text cuts off: one that the prompt begins, and what may come after
# as much of any other as is certain, without a recipient and with one.
_CUT_OF_PROMPT = re.compile(r" to=[^\s<]*(?:<\|?\w*\|?)?")
_CUT = re.compile(r" *(?:t|to|to=)?(?:<\|?\w*\|?)?")
_CUT_CALL = re.compile(r" *(?:to=|\w*)(?: *<\|?\w*\|?)?")


@dataclass(frozen=True, slots=True)
class Tags:
    """`begin`, header, `message`, body, one of `ends`, any number of times.

    `channel`: a tag inside headers, which begins one as well where `begin` was left out.
    `call`: a pattern for the headers of tool calls.
    """

    begin: str
    message: str
    ends: tuple[str, ...]
    call: re.Pattern[str]
    channel: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All tags."""
        return tuple(filter(None, (self.begin, self.channel, self.message, *self.ends)))

    def is_call(self, header: str) -> bool:
        """Whether a tool call follows this header."""
        return header.endswith(self.message) and self.call.search(header) is not None


class Kind(Enum):
    """What a segment of the text is."""

    HEADER = auto()
    BODY = auto()
    END = auto()
    STRAY = auto()


class Segment(NamedTuple):
    """Consecutive text of one kind, tags included."""

    kind: Kind
    text: str


class MessageReader:
    """Splits a text into messages, tolerating missing parts.

    A text may begin inside a header, as its `begin` is often in the prompt: that is recognised by
    `to=` or a tag; else it begins in a body (`in_body` says so from the outset). A header without
    the tag at its end is as long as it looks like one. A tag in a string of a call's JSON is text,
    and so is one right between backticks. Other code is not looked for: these tags are special
    tokens, of which none is in code, and a fence that the model forgets to close ends with them.
    A tag that stands where it means nothing is stray.
    """

    def __init__(self, tags: Tags, *, in_body: bool = False) -> None:
        self._tags = tags
        self._splitter = TagSplitter(tags.texts, quotes=True)
        begin, channel = re.escape(tags.begin), re.escape(tags.channel)
        to, form = r"(?: +to=[^\s<]+)?", r"(?: *<\|\w+\|> *\w*)?"
        heads = [rf"[^\n]*{channel} *[a-z]*{to}{form}"] if tags.channel else []
        self._head = re.compile("|".join([*heads, rf"{begin} *[a-z]*{to}", ""]))
        self._header: str | None = None if in_body else ""
        self._begun = in_body  # whether it is certain that the text does not begin in a body
        self._in_call = False
        self._json: JsonScanner | None = None

    def feed(self, text: str) -> Iterator[Segment]:
        """The segments that are certain now."""
        for piece in self._splitter.feed(text):
            yield from self._read(piece)

    def stops(self) -> str | None:
        """The characters without which text is more of this body and need not be fed.

        None where all text has to be: in headers, and in calls, whose JSON is followed.
        """
        return None if self._header is not None or self._in_call else self._splitter.stops()

    def finish(self) -> Iterator[Segment]:
        """The text held back, at the end."""
        for piece in self._splitter.finish():
            yield from self._read(piece)
        header = self._header or ""
        if self._is_cut(header):
            self._header = None
            yield Segment(Kind.HEADER, header)
        yield from self._break_header(self._header or "")

    def _read(self, piece: Piece) -> Iterator[Segment]:
        if piece.is_tag and not (self._json and self._json.in_string):
            yield from self._read_tag(piece.text)
        elif self._header is None:
            yield from self._read_body(piece.text)
        else:
            yield from self._read_header(self._header, piece.text)

    def _read_tag(self, tag: str) -> Iterator[Segment]:
        header = self._header or ""
        if tag == self._tags.message:
            yield self._end_header(header + tag) if header else Segment(Kind.STRAY, tag)
            self._header = None
        elif tag == self._tags.channel and len(header) + len(tag) <= _LONGEST_HEADER:
            self._leave_body()
            self._header, self._begun = header + tag, True
        else:
            yield from self._break_header(header)
            self._leave_body()
            if tag in self._tags.ends:
                yield Segment(Kind.END, tag)
            else:
                self._header, self._begun = tag, True

    def _read_header(self, header: str, text: str) -> Iterator[Segment]:
        whole = header + text
        said = whole.lstrip(" ")
        if not self._begun and not (said + "to="[len(said) :]).startswith("to="):
            self._header = None
            yield from self._read_body(whole)
            return
        line = whole.find("\n", len(header))
        end = _LONGEST_HEADER if line < 0 else min(line, _LONGEST_HEADER)
        if line < 0 and len(whole) <= end:
            self._header = whole
            return
        yield from self._break_header(whole[:end])
        yield from self._read_body(whole[end:])

    def _break_header(self, header: str) -> Iterator[Segment]:
        """A header without its end tag, and what follows it instead."""
        self._header = None
        head = self._length_of_head(header)
        if head:
            yield self._end_header(header[:head])
        yield from self._read_body(header[head:])

    def _is_cut(self, header: str) -> bool:
        """Whether nothing but more of it can have followed this header, so that no body begins."""
        if not self._begun:
            return _CUT_OF_PROMPT.fullmatch(header) is not None
        cut = _CUT_CALL if self._tags.call.search(header) else _CUT
        return bool(header) and cut.fullmatch(header, self._length_of_head(header)) is not None

    def _length_of_head(self, header: str) -> int:
        match = self._head.match(header)
        return match.end() if match else 0

    def _end_header(self, header: str) -> Segment:
        self._header, self._begun = None, True
        self._in_call = self._tags.is_call(header)
        return Segment(Kind.HEADER, header)

    def _read_body(self, text: str) -> Iterator[Segment]:
        if self._in_call:
            self._follow(text)
        if text:
            yield Segment(Kind.BODY, text)

    def _follow(self, text: str) -> None:
        at = 0
        if self._json is None:
            at = skip_space(text)
            if at == len(text):
                return
            if text[at] not in "{[":
                self._in_call = False
                return
            self._json = JsonScanner()
        self._json.feed(text, at, [])

    def _leave_body(self) -> None:
        self._in_call, self._json = False, None
