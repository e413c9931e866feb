"""Code in Markdown that arrives in pieces: spans between backticks, and fenced blocks."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

_RUN = re.compile(r"`+|~+")
_EVENT = re.compile(r"`+|\n")
# What may stand in front of a fence on its line: indentation, quotes, the marks of list items.
_MARGIN = r"(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*"
_IS_MARGIN = re.compile(_MARGIN)
_MAY_BE_MARGIN = re.compile(rf"{_MARGIN}(?:[-*+]|\d{{1,9}}[.)]?)?")
_FENCE = re.compile(rf"{_MARGIN}(?:(?P<ticks>`{{3,}})|~{{3,}})")
_MAY_BE_FENCE = re.compile(rf"{_MARGIN}(?:[-*+]|\d{{1,9}}[.)]?|`+|~+)?")
_NAMED_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<run>`+|~+)[ \t]*[\w+#.-]+[ \t\r]*")
_CLOSING = re.compile(r"(?P<indent>[ \t>]*)(?P<run>`+|~+)[ \t\r]*")
_BLANK = re.compile(r"[ \t\r]*")
_PARTED = re.compile(r".*\n[ \t\r]*\n")
# Backticks after a space or an opening bracket, or at the start of a string, in front of a word.
_BEGINS = re.compile(r'(?:(?<=[\s(\[{])|(?<=[:,\[{ ]"))`+(?=[A-Za-z0-9_<\[{$/])')
_LONGEST_LINE = 80
# How far a fence may go on behind an end tag that stands like a real one, in front of a blank line.
_REACH = 500


class Stretch(NamedTuple):
    """Consecutive text, and whether it is code."""

    text: str
    is_code: bool


@dataclass(frozen=True, slots=True)
class _Fence:
    char: str
    length: int
    column: int


class CodeSpans:
    """Separates code from prose, by the rules of CommonMark with three exceptions.

    `marks`: the beginnings of tags. Text without them is passed on before it is known whether it is
    code, other text is held back until then. `breaks`: those that begin a text of its own, and with
    it a line. `is_prose`: whether code may begin
    where the text has been passed on to; in a tool call a backtick means nothing.

    A span of n backticks ends at the next n in its paragraph; without these, its backticks are
    text. A fence ends at a line of at least as many characters, or at the end of the text.

    The exceptions: a run of backticks that looks like the beginning of a span ends none, so one
    stray backtick costs nothing. A fence is found at any indentation, as in a list, and ends in
    front of a tag too. `ends` are the tags that end reasoning; they can be real where a model
    forgets to close its code. One without `start` in front of it is real in a span of several
    lines, and in a fence that does not close: at the end of the text, at the next fence with a
    language, and in front of a blank line after `_REACH` characters. Inside a line it is code.
    """

    def __init__(
        self,
        marks: Iterable[str],
        is_prose: Callable[[], bool],
        *,
        breaks: Iterable[str] = (),
        start: str = "",
    ) -> None:
        self.ends: tuple[str, ...] = ()
        self._start = start
        self._marks = tuple(filter(None, marks))
        self._firsts = "".join(sorted({mark[0] for mark in self._marks}))
        self._mark = _any_of(self._marks)
        self._break = _any_of(breaks)
        self._is_prose = is_prose
        self._text = ""
        self._at = 0  # what is in front of it is decided
        self._shown = 0
        self._line = ""  # what is in front of `_at`
        self._open = 0  # the length of the run at `_at`, if that may begin a span
        self._from = 0  # where to look on for its end
        self._fence: _Fence | None = None
        self._pairs = 0  # start tags in the fence without an end
        self._end: int | None = None  # an end tag in the fence that may be real

    def feed(self, text: str) -> Iterator[Stretch]:
        """The text of which enough is known. What is yielded must be read before the next."""
        self._text += text
        yield from self._read(final=False)
        passed = min(self._at, self._shown)
        self._text = self._text[passed:]
        self._at -= passed
        self._shown -= passed
        self._from -= passed
        if self._end is not None:
            self._end -= passed

    def finish(self) -> Iterator[Stretch]:
        """The text held back, at the end."""
        yield from self._read(final=True)

    @property
    def holds(self) -> bool:
        """Whether some text is held back."""
        return self._shown < len(self._text)

    def stops(self, stops: str) -> str | None:
        """The characters without which text need not be fed, see `Parser.passthrough`.

        `stops`: those of the parser in prose. None where all text has to be fed.
        """
        if self.holds or self._open:
            return None
        if self._fence:
            if _CLOSING.fullmatch(self._text, self._at) or not self._text[self._at :].strip(" \t>"):
                return None
            return f"{self._firsts}\n" if self.ends else "\n"
        return None if _MAY_BE_MARGIN.fullmatch(self._last_line()) else f"{stops}`\n"

    def _read(self, *, final: bool) -> Iterator[Stretch]:
        while self._at < len(self._text):
            before = self._at, self._open, self._fence
            if self._fence:
                yield from self._read_fence(self._fence, final)
            elif self._open:
                yield from self._read_span(final)
            else:
                yield from self._read_prose(final)
            if before == (self._at, self._open, self._fence):
                break

    def _show(self, end: int, *, is_code: bool) -> Iterator[Stretch]:
        if end > self._shown:
            text = self._text[self._shown : end]
            self._shown = end
            yield Stretch(text, is_code)

    def _pass(self, end: int, *, is_code: bool) -> Iterator[Stretch]:
        """Shows the text up to `end`, which is decided."""
        yield from self._show(end, is_code=is_code)
        passed = self._text[self._at : end]
        self._at = end
        line = (self._line + passed).rpartition("\n")[2]
        self._line = line if len(line) <= _LONGEST_LINE else f"x{line[-_LONGEST_LINE:]}"

    def _last_line(self) -> str:
        """The line in front of `_at`."""
        return self._break.split(self._line)[-1]

    def _show_what_is_text(self) -> Iterator[Stretch]:
        """Shows what is text, code or not."""
        mark = self._mark.search(self._text, self._shown)
        cut = max((_overlap(self._text, each) for each in self._marks), default=0)
        yield from self._show(mark.start() if mark else len(self._text) - cut, is_code=True)

    def _read_prose(self, final: bool) -> Iterator[Stretch]:
        run = _RUN.search(self._text, self._at)
        yield from self._pass(run.start() if run else len(self._text), is_code=False)
        if run is None:
            return
        length, is_cut = len(run[0]), run.end() == len(self._text) and not final
        margin = self._last_line()
        may_fence = _IS_MARGIN.fullmatch(margin) and (length >= 3 or is_cut)
        if not self._is_prose() or (run[0][0] == "~" and not may_fence):
            yield from self._pass(run.end(), is_code=False)
            return
        if is_cut:
            return
        if may_fence:
            line_end = self._text.find("\n", run.end()) + 1
            info = self._text[run.end() : line_end or len(self._text)]
            if run[0][0] == "~" or "`" not in info:
                if line_end or final:
                    self._fence = _Fence(run[0][0], length, len(margin))
                    self._pairs = 0
                    yield from self._pass(line_end or len(self._text), is_code=True)
                else:
                    yield from self._show_what_is_text()
                return
        self._open, self._from = length, run.end()

    def _read_span(self, final: bool) -> Iterator[Stretch]:
        while event := _EVENT.search(self._text, self._from):
            if event[0] == "\n":
                goes_on = self._goes_on(event.end(), final)
            elif event.end() == len(self._text) and not final:
                goes_on = None
            else:
                closes = len(event[0]) == self._open
                is_padded = self._text[self._at + self._open] == " "
                if closes and (is_padded or not _BEGINS.match(self._text, event.start())):
                    self._open = 0
                    yield from self._pass(event.end(), is_code=True)
                    return
                goes_on = not closes
            if goes_on is None:
                self._from = event.start()
                break
            if not goes_on:
                final = True
                break
            self._from = event.end()
        else:
            self._from = len(self._text)
        if final:
            end, self._open = self._at + self._open, 0
            yield from self._pass(end, is_code=False)
            return
        yield from self._show_what_is_text()

    def _goes_on(self, line: int, final: bool) -> bool | None:
        """Whether a span can go on in the line that begins here; None if that is not known."""
        text = self._text
        if self._holds_an_end(text[self._at : line]):
            return False
        blank = _BLANK.match(text, line)
        end = blank.end() if blank else line
        if end < len(text) and text[end] == "\n":
            return False
        if not final and _MAY_BE_FENCE.fullmatch(text, line):
            return None
        fence = _FENCE.match(text, line)
        if fence is None:
            return end < len(text)
        line_end = text.find("\n", fence.end())
        if fence["ticks"] and "`" in text[fence.end() : line_end if line_end >= 0 else len(text)]:
            return True
        return False if line_end >= 0 or final else None

    def _holds_an_end(self, text: str) -> bool:
        """Whether a text holds a tag that ends reasoning, and no start of it in front."""
        places = [place for end in self.ends if (place := text.find(end)) >= 0]
        return bool(places) and not (self._start and self._start in text[: min(places)])

    def _read_fence(self, fence: _Fence, final: bool) -> Iterator[Stretch]:
        line_end = self._text.find("\n", self._at)
        line = self._text[self._at : line_end if line_end >= 0 else len(self._text)]
        is_whole = line_end >= 0 or final
        closing = _CLOSING.match(line)
        if closing and self._closes(fence, closing):
            behind = line[closing.end() :]
            if (not behind and is_whole) or behind.startswith(self._marks):
                self._fence = self._end = None
                yield from self._pass(self._at + closing.end(), is_code=True)
                return
            if not is_whole and any(mark.startswith(behind) for mark in self._marks):
                if self._end is None:
                    yield from self._show(self._at + closing.end(), is_code=True)
                return
        if self._end is None and self.ends:
            yield from self._look_for_end(line, is_whole=is_whole)
        if self._end is not None and self._is_real(fence, line, line_end, final=final):
            self._at = self._shown = self._end
            self._fence = self._end = None
            self._line = ""
            return
        if self._end is None and (is_whole or not self.ends):
            yield from self._show(self._at + len(line) + (line_end >= 0), is_code=True)
        if line_end >= 0:
            self._at = line_end + 1
            self._line = ""
        elif final:
            self._at = len(self._text)

    def _closes(self, fence: _Fence, closing: re.Match[str]) -> bool:
        run = closing["run"]
        is_near = len(closing["indent"]) < fence.column + 4
        return is_near and run[0] == fence.char and len(run) >= fence.length

    def _look_for_end(self, line: str, *, is_whole: bool) -> Iterator[Stretch]:
        """Looks for an end tag that may be real, and shows the line up to there."""
        pairs = self._pairs
        for tag in self._mark.finditer(line):
            pairs += tag[0] == self._start
            if tag[0] not in self.ends:
                continue
            before, behind = line[: tag.start()].strip(), line[tag.end() :].strip()
            if not pairs and not (before and behind):
                if is_whole or not before:
                    self._end = self._at + tag.start()
                yield from self._show(self._at + tag.start(), is_code=True)
                return
            pairs = max(pairs - 1, 0)
        if is_whole:
            self._pairs = pairs
        else:
            cut = max((_overlap(line, mark) for mark in self._marks), default=0)
            yield from self._show(self._at + len(line) - cut, is_code=True)

    def _is_real(self, fence: _Fence, line: str, line_end: int, *, final: bool) -> bool:
        """Whether the end tag in front is no code, as far as this line shows."""
        end = self._end or 0
        if line_end < 0 and (final or _CLOSING.fullmatch(line)):
            return final
        named = _NAMED_FENCE.fullmatch(line) if line_end >= 0 or final else None
        if named and self._closes(fence, named):
            return True
        is_far = self._at + len(line) - end > _REACH
        return is_far and _PARTED.match(self._text, end) is not None


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def _overlap(text: str, mark: str) -> int:
    """How much of the end of `text` may become `mark`."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((n for n in lengths if text.endswith(mark[:n])), 0)
