"""Tool calls between tags."""

import re
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum, auto

from enginebay import Parser, Part, Passthrough
from enginebay_parsers.json.call import Call
from enginebay_parsers.json.syntax import SPACE, Frame
from enginebay_parsers.stream.code_spans import CodeSpans, Stretch
from enginebay_parsers.stream.delta_builder import DeltaBuilder
from enginebay_parsers.stream.json_scanner import skip
from enginebay_parsers.stream.splitter import Piece, TagSplitter

_UP_TO_CLOSER = re.compile(r"(?s).*[\]}`]")
# A string with more tags than this in it is believed, and what is no call yet is given up: text is
# read again at most that many times.
_MOST_TAGS = 8


class _State(Enum):
    OUTSIDE = auto()
    OPENED = auto()
    BEFORE_CALLS = auto()
    CALL = auto()
    BETWEEN_CALLS = auto()


class CallsParser(Parser):
    """Reads the pieces of the splitter in order, some of them twice.

    A call is certain when it has a name (`Call`); until then what turns out to be none comes back
    as content, tags included. From then on the call stands, whatever follows: what is wrong inside
    its arguments stays in them, what is wrong outside ends the call and comes back as content, its
    closing brackets and the tags that end it dropped.

    A tag outside of JSON strings ends a call, and leaves no trace if it is one to be dropped. A tag
    in a string is text. A tag in a string that is never closed, as far as what follows can tell,
    was the end of the call after all. In code, everything is text.

    `names`: the functions that can be called, if others cannot.

    `_seen` are the pieces that may have to be read again: those of a call that may be none, or
    those since a tag in a string that may be the end of the call.
    """

    def __init__(
        self, frame: Frame, new_call: Callable[[], Call], names: Collection[str] | None = None
    ) -> None:
        self._frame = frame
        self._new_call = new_call
        self._names = names
        tags = (frame.opening, *frame.starts, frame.end, frame.closing, *frame.dropped)
        self._splitter = TagSplitter(tags)
        self._code = CodeSpans(tags, self._is_prose)
        self._deltas = DeltaBuilder()
        self._unread: deque[Piece] = deque()
        self._state = _State.BEFORE_CALLS if frame.bare else _State.OUTSIDE
        self._seen = [Piece("")] if frame.bare else []
        self._call = new_call()
        self._calls = 0
        self._ids: set[str] = set()
        self._is_call = False
        self._in_doubt = False
        self._tags_in_strings = 0
        self._end_is_due = False
        self._closing_is_due = False

    def feed(self, text: str) -> list[Part]:
        for stretch in self._code.feed(text):
            self._take(stretch)
        return self._deltas.take()

    def passthrough(self) -> Passthrough | None:
        stops = self._splitter.stops() if self._state is _State.OUTSIDE else None
        stops = None if stops is None else self._code.stops(stops)
        return None if stops is None else Passthrough("content", stops)

    def finish(self) -> list[Part]:
        for stretch in self._code.finish():
            self._take(stretch)
        self._read([piece for piece in self._splitter.finish() if not self._ends_cut(piece.text)])
        while self._state is not _State.OUTSIDE:
            self._end_of_text()
            self._read([])
        return self._deltas.take()

    def _ends_cut(self, text: str) -> bool:
        """Whether the text ends in a tag that ends a call, or all calls, and is due."""
        ends = (self._end_is_due and self._frame.end, self._closing_is_due and self._frame.closing)
        return self._state is not _State.CALL and any(end and end.startswith(text) for end in ends)

    def _is_prose(self) -> bool:
        """Whether code may begin here; not where a call may go on with a backtick."""
        if self._state is _State.CALL:
            return not (self._is_call or self._call.in_string or self._frame.fence)
        if self._state is _State.BETWEEN_CALLS:
            return not self._frame.fence
        return not self._splitter.expects("`")

    def _take(self, stretch: Stretch) -> None:
        if not stretch.is_code:
            self._read(self._splitter.feed(stretch.text))
            return
        self._read(self._splitter.finish())
        while self._state is not _State.OUTSIDE:
            if self._state is _State.BETWEEN_CALLS:
                self._state = _State.OUTSIDE
            else:
                self._give_back()
            self._read([])
        self._deltas.content(stretch.text)

    def _read(self, pieces: list[Piece]) -> None:
        self._unread.extend(pieces)
        while self._unread:
            piece = self._unread.popleft()
            if not piece.is_tag:
                self._read_text(piece.text)
            elif self._state is _State.CALL:
                self._read_tag_in_call(piece)
            else:
                self._read_tag(piece)

    def _read_text(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._state is _State.OUTSIDE:
                self._deltas.content(text[at:])
                return
            if self._state is _State.CALL:
                at = self._read_call(text, at)
            else:
                at = self._read_gap(text, at)

    def _read_gap(self, text: str, at: int) -> int:
        frame = self._frame
        between = self._state is _State.BETWEEN_CALLS
        pattern = {
            _State.BEFORE_CALLS: frame.before,
            _State.BETWEEN_CALLS: frame.between,
        }.get(self._state, SPACE)
        end = skip(pattern, text, at)
        gap = text[at:end]
        if between and (closed := _UP_TO_CLOSER.match(gap)):
            gap = gap[closed.end() :]
            self._seen.clear()
        self._seen.append(Piece(gap))
        if end == len(text):
            return end
        begins = text.startswith(frame.begins_with, end)
        if begins and (self._state is _State.BEFORE_CALLS or (between and frame.begins_with)):
            self._state = _State.CALL
            self._call = self._new_call()
            self._is_call = self._in_doubt = False
            self._tags_in_strings = 0
            return end
        return self._give_back(text, end)

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
            self._believe()
        if call.is_content:
            self._seen.clear()
            self._state = _State.OUTSIDE
            return end
        if not self._is_call:
            if call.name is None and not call.over:
                return end
            if not self._is_certain():
                return self._give_back(text, end)
        self._take_arguments()
        return end

    def _is_certain(self) -> bool:
        """Whether this is a call; if so, begins it."""
        name, id = self._call.name, self._call.id
        if name is None or (self._names is not None and name not in self._names):
            return False
        if id is not None and (id in self._ids or not self._frame.accepts_id(id)):
            id = None
        if id is not None:
            self._ids.add(id)
        self._deltas.name(self._calls, name, id)
        self._calls += 1
        self._is_call = self._end_is_due = self._closing_is_due = True
        self._seen.clear()
        self._tags_in_strings = 0
        return True

    def _take_arguments(self) -> None:
        self._deltas.arguments(self._calls - 1, self._call.take())
        if self._call.over:
            self._state = _State.BETWEEN_CALLS

    def _read_tag_in_call(self, tag: Piece) -> None:
        if not self._call.in_string:
            self._unread.appendleft(tag)
            self._end_call(cut_off=False)
            return
        self._tags_in_strings += 1
        too_many = self._tags_in_strings > _MOST_TAGS
        if too_many and not self._is_call:
            self._unread.appendleft(tag)
            self._give_back()
            return
        if too_many:
            self._believe()
        elif self._is_call:
            self._in_doubt = self._call.watch()
        self._read_call(tag.text, 0, is_tag=True)

    def _read_tag(self, tag: Piece) -> None:
        if tag.text in self._frame.dropped:
            self._end_is_due = self._closing_is_due = False
            if self._state is not _State.OUTSIDE:
                self._end_of_text()
            return
        starts = tag.text in self._frame.starts
        if not (starts and self._state is _State.OPENED):
            if self._state in (_State.OPENED, _State.BEFORE_CALLS):
                self._deltas.content("".join(piece.text for piece in self._seen))
            self._seen.clear()
        if starts:
            self._state = _State.BEFORE_CALLS
            self._seen.append(tag)
        elif tag.text == self._frame.opening:
            self._state = _State.OPENED
            self._seen.append(tag)
            self._closing_is_due = False
        elif tag.text == self._frame.end:
            in_block = self._end_is_due and self._closing_is_due and self._frame.closing
            self._state = _State.BETWEEN_CALLS if in_block else _State.OUTSIDE
            self._drop(tag, due=self._end_is_due)
        else:
            self._state = _State.OUTSIDE
            self._drop(tag, due=self._closing_is_due)
            self._closing_is_due = False
        self._end_is_due = False

    def _drop(self, tag: Piece, *, due: bool) -> None:
        if not due:
            self._deltas.content(tag.text)

    def _end_of_text(self) -> None:
        if self._state is _State.BETWEEN_CALLS:
            self._state = _State.OUTSIDE
        elif self._state is not _State.CALL:
            self._give_back()
        elif self._in_doubt and not "".join(piece.text for piece in self._seen[1:]).strip():
            self._end_call_at_tag()
        else:
            self._end_call(cut_off=True)

    def _end_call(self, *, cut_off: bool) -> None:
        self._call.end(cut_off=cut_off)
        if self._is_call or self._is_certain():
            self._take_arguments()
        else:
            self._give_back()

    def _end_call_at_tag(self, text: str = "", at: int = 0) -> int:
        """The tag in a string was the end of the call: continue from there."""
        self._state = _State.BETWEEN_CALLS
        return self._read_again(text, at)

    def _believe(self) -> None:
        """The tags in the string were text."""
        self._in_doubt = False
        self._tags_in_strings = 0
        self._seen.clear()

    def _give_back(self, text: str = "", at: int = 0) -> int:
        """This is not a call: read it again, except its first tag, as text outside of calls."""
        first, *self._seen = self._seen
        self._deltas.content(first.text)
        self._state = _State.OUTSIDE
        return self._read_again(text, at)

    def _read_again(self, text: str, at: int) -> int:
        self._unread.appendleft(Piece(text[at:]))
        self._unread.extendleft(reversed(self._seen))
        self._seen.clear()
        return len(text)
