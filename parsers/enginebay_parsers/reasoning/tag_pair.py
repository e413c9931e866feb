"""Reasoning between a start tag and an end tag."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay import (
    AnswerMarks,
    AsideMarks,
    Margins,
    Part,
    Passthrough,
    ReasoningFormat,
    ReasoningParser,
    Span,
    ThoughtMarks,
)
from enginebay_parsers.stream.code_spans import CodeSpans, Stretch
from enginebay_parsers.stream.delta_builder import DeltaBuilder, ReasoningRanges
from enginebay_parsers.stream.json_scanner import JsonScanner, skip
from enginebay_parsers.stream.splitter import Piece, TagSplitter

_NO_BRACKET = re.compile(r"[^{\[]*")
# Further from the end of the prompt than this, a start tag is something the prompt speaks about.
_REACH = 256
# What ends the tag that a name stands in may follow it.
_NAME_AND_TAG = re.compile(
    r"""\s{0,99}(?P<name>[^\s<>"'`{}()\[\],;=]{0,255})(?:">?|>)?\s{0,99}(?P<tag><?)"""
)


@dataclass(frozen=True, slots=True)
class TagPair(ReasoningFormat):
    """`start`, reasoning, `end`, any number of times.

    `header`: a line that may stand right after `start` and is not part of the reasoning.
    `answer`: tags that open and close the answer, and are no part of it. `opens`, `closes`: the
    ways in which models write them. `space`: the whitespace around reasoning.
    `evidence`: what tells in a chat template that its model writes this, if not the tags.
    """

    start: str
    end: str
    header: str = ""
    answer: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    space: Margins = field(default_factory=Margins)
    evidence: tuple[str, ...] = ()
    example: str = ""

    def matches(self, template: str) -> bool:
        """Whether one of the tags, or the evidence, occurs in the chat template.

        Some templates have only the end tag, where they cut reasoning out of the history.
        """
        return any(text in template for text in self.evidence or (self.start, self.end))

    def starts_inside(self, prompt: str) -> bool:
        """Whether the prompt ends in reasoning that it opened itself.

        That is a start tag with no end tag, no other tag and little text after it.
        """
        at = prompt.rfind(self.start)
        if at <= prompt.rfind(self.end):
            return False
        behind = prompt[at + len(self.start) :]
        is_words = self.start[0].isalpha()  # such as Apriel's, after which tags still are tags
        opening, closing = (
            ("<", ">") if is_words else map(re.escape, (self.start[0], self.start[-1]))
        )
        return len(behind) <= _REACH and not re.search(rf"{opening}\S{{0,30}}{closing}", behind)

    def parser(
        self, *, inside: bool, spans: Sequence[Span] = (), spans_in_thought: bool = True
    ) -> ReasoningParser:
        """A parser for one choice.

        A start tag opens reasoning or is repeated in it; both are dropped. An end tag closes it;
        one that begins the answer is dropped too: models asked not to think write it. A tag of the
        answer is dropped and closes reasoning, too. After that, the tags of reasoning are text.
        In code, all tags are text (`CodeSpans`).

        Spans that open with a bracket hold JSON: their end tag in a JSON string does not end them.
        """
        return _TagPairParser(self, inside, spans, spans_in_thought)

    def marks(self, *, tools: bool) -> ThoughtMarks:
        """The tags; the end tag is enough to close reasoning."""
        return ThoughtMarks(self.start, self.end, self.end, self.answer)

    def asides(self) -> tuple[AsideMarks, ...]:
        """Reasoning, and the tags of the answer, which are no part of it."""
        ends = (self.end, *self.answer)
        thought = AsideMarks(starts=(self.start,), ends=ends, comes="once")
        return thought, AsideMarks(starts=(*self.answer, *self.closes), ends=("",))

    def answer_marks(self, *, behind_thought: bool) -> AnswerMarks:
        """The tags of the answer, which may be left out: some are in prompts, or nowhere."""
        return AnswerMarks(self.opens, self.closes, calls=self.answer)

    def margins(self) -> Margins:
        """What templates write between the tags and the texts."""
        return self.space

    def syntax(self) -> tuple[str, ...]:
        """All tags, and the header."""
        return (self.start + self.header, self.end, *self.answer, *self.opens, *self.closes)


class _TagPairParser(ReasoningParser):
    def __init__(
        self, tags: TagPair, inside: bool, spans: Sequence[Span], spans_in_thought: bool
    ) -> None:
        self._tags = tags
        self._spans = {span.start: span for span in spans}
        self._spans_in_reasoning = spans_in_thought
        marks = [tags.start, tags.end, *tags.answer, *self._spans, *(span.end for span in spans)]
        self._splitter = TagSplitter(marks)
        breaks = (tags.start, tags.end, *tags.answer)
        self._code = CodeSpans(marks, self._is_prose, breaks=breaks, start=tags.start)
        self._deltas = DeltaBuilder()
        self._ranges = ReasoningRanges()
        self._inside = False
        self._is_over = False  # reasoning has ended
        self._has_begun = False  # something has been thought or said
        self._header: str | None = None
        self._span: _OpenSpan | None = None
        self._opening: Span | None = None
        self._held: list[str] = []
        if inside:
            self._enter()

    def feed(self, text: str) -> list[Part]:
        if self._is_plain:
            self._end()
            self._read_text(text)
        else:
            for stretch in self._code.feed(text):
                self._take(stretch)
        return self._deltas.take()

    def passthrough(self) -> Passthrough | None:
        stops = self._splitter.stops()
        if stops is None or self._opening or self._span or self._header is not None:
            return None
        if self._is_plain and not self._code.holds:
            return Passthrough("content")
        stops = self._code.stops(stops)
        if stops is None:
            return None
        return Passthrough("reasoning" if self._inside else "content", stops)

    def finish(self) -> list[Part]:
        self._end()
        return self._deltas.take()

    def end_reasoning(self) -> list[Part]:
        self._end()
        self._leave()
        return self._deltas.take()

    def settled(self) -> list[tuple[int, bool]]:
        return self._ranges.take()

    @property
    def _is_plain(self) -> bool:
        """Whether all that may come is the answer, with no tags of its own."""
        return self._is_over and not self._tags.answer

    def _is_prose(self) -> bool:
        return self._span is None and not self._splitter.expects("`")

    def _end(self) -> None:
        """The text ends, or what may still be in it has no meaning."""
        for stretch in self._code.finish():
            self._take(stretch)
        for piece in self._splitter.finish():
            self._read(piece)
        self._end_opening()
        self._end_header()

    def _take(self, stretch: Stretch) -> None:
        pieces = self._splitter.finish() if stretch.is_code else self._splitter.feed(stretch.text)
        for piece in pieces:
            self._read(piece)
        if stretch.is_code:
            self._end_opening()
            self._read_text(stretch.text)

    def _enter(self) -> None:
        self._inside = self._has_begun = True
        self._header = "" if self._tags.header else None
        self._code.ends = (self._tags.end, *self._tags.answer)

    def _leave(self) -> None:
        self._inside, self._is_over, self._has_begun = False, True, True
        self._code.ends = ()

    def _read(self, piece: Piece) -> None:
        if self._opening is not None:
            self._read_behind_start_of_span(self._opening, piece)
        elif self._span is not None:
            self._pass_on(piece.text)
            if self._span.ends_with(piece):
                self._span = None
        elif piece.is_tag:
            self._read_tag(piece)
        else:
            self._read_text(piece.text)

    def _read_tag(self, piece: Piece) -> None:
        tags = self._tags
        if piece.text == tags.start and not self._is_over:
            self._end_header()
            self._ranges.add(len(piece.text), reasoning=True)
            self._enter()
        elif piece.text == tags.end and (self._inside or not self._has_begun):
            self._end_header()
            self._ranges.add(len(piece.text), reasoning=True)
            self._leave()
        elif piece.text in tags.answer or (not self._inside and piece.text in tags.closes):
            self._end_header()
            self._ranges.add(len(piece.text), reasoning=False)
            self._leave()
        elif piece.text in self._spans and (self._spans_in_reasoning or not self._inside):
            self._end_header()
            self._held.append(piece.text)
            self._opening = self._spans[piece.text]
            if not self._opening.opens_with and not self._opening.named:
                self._open_span(self._opening)
        else:
            self._read_text(piece.text)

    def _read_behind_start_of_span(self, span: Span, piece: Piece) -> None:
        opens = False if self._is_mark(piece) else self._opens(span, piece.text)
        if opens is None:
            self._held.append(piece.text)
            return
        if opens:
            self._open_span(span)
        else:
            self._end_opening()
        self._read(piece)

    def _is_mark(self, piece: Piece) -> bool:
        marks = (self._tags.start, self._tags.end, *self._tags.answer)
        return piece.is_tag and piece.text in marks

    def _opens(self, span: Span, text: str) -> bool | None:
        """Whether what follows its start makes it a span; None while that is unknown."""
        if span.named:
            text = "".join(self._held[1:]) + text
            match = _NAME_AND_TAG.match(text)
            if match and match["name"] and match["tag"]:
                return True
            return None if match and match.end() == len(text) else False
        first = text.lstrip(" \t\r\n")[:1]
        return first in span.opens_with if first else None

    def _open_span(self, span: Span) -> None:
        self._pass_on("".join(self._held))
        self._held.clear()
        self._span, self._opening = _OpenSpan(span), None

    def _pass_on(self, text: str) -> None:
        self._has_begun = True
        self._deltas.content(text)
        self._ranges.add(len(text), reasoning=False)

    def _end_opening(self) -> None:
        text = "".join(self._held)
        self._held.clear()
        self._opening = None
        if text:
            self._read_text(text)

    def _read_text(self, text: str) -> None:
        self._ranges.add(len(text), reasoning=self._inside)
        if self._header is not None:
            text = self._read_header(text)
        if self._inside:
            self._deltas.reasoning(text)
        else:
            self._has_begun = self._has_begun or not text.isspace()
            self._deltas.content(text)

    def _read_header(self, text: str) -> str:
        """What of `text`, and of the header so far, turns out to be no header."""
        line = f"{self._tags.header}\n"
        text = (self._header or "") + text
        if line.startswith(text) and text != line:
            self._header = text
            return ""
        self._header = None
        return text.removeprefix(line)

    def _end_header(self) -> None:
        if self._header and self._header != self._tags.header:
            self._deltas.reasoning(self._header)
        self._header = None


class _OpenSpan:
    """Finds the tag that ends a span.

    In a span of JSON, which is one that opens with a bracket, tags in strings are text.
    """

    def __init__(self, span: Span) -> None:
        self._end = span.end
        self._holds_json = bool(span.opens_with) and set(span.opens_with) <= set("{[")
        self._json: JsonScanner | None = None

    def ends_with(self, piece: Piece) -> bool:
        """Takes the next piece of the span and tells whether it is its end."""
        if piece.is_tag and piece.text == self._end and not (self._json and self._json.in_string):
            return True
        if self._holds_json:
            self._follow(piece.text)
        return False

    def _follow(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._json is None:
                at = skip(_NO_BRACKET, text, at)
                self._json = JsonScanner() if at < len(text) else None
            if self._json is not None:
                at = self._json.feed(text, at, [])
                if self._json.complete:
                    self._json = None
