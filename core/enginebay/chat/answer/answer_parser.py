"""Answers that a grammar constrains: reasoning, and content without tags, or calls only."""

from dataclasses import dataclass

from enginebay.contract.formats import (
    AnswerMarks,
    Parser,
    Passthrough,
    ReasoningParser,
    ThoughtMarks,
)
from enginebay.contract.types import ContentDelta, Part, ToolCallDelta


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The tags and markers around constrained content.

    `thought`: None without reasoning. `inside`: the completion begins inside reasoning. `at_once`:
    around an answer that starts the completion. `behind`: around one after reasoning. `trim`:
    leading whitespace is not part of the content.
    """

    thought: ThoughtMarks | None
    at_once: AnswerMarks
    behind: AnswerMarks
    inside: bool
    trim: bool


class AnswerParser(ReasoningParser):
    """Parses constrained content, where a JSON string may contain `</think>` literally.

    `parser` is the format's own; it gets the text up to the first end tag. Unless the prompt opened
    it, reasoning must begin with the start tag. The rest is content, apart from the tags at its
    beginning and end, or tool calls, which the format's parser reads.
    """

    def __init__(self, parser: ReasoningParser, form: AnswerForm) -> None:
        self._parser = parser
        self._form = form
        self._marks = form.behind if form.inside else form.at_once
        self._held = ""  # may be the beginning of a tag
        self._settled: list[tuple[int, bool]] = []
        self._read = self._thought if form.inside else self._start

    def feed(self, text: str) -> list[Part]:
        """Parts that are certain now."""
        return self._read(text)

    def passthrough(self) -> Passthrough | None:
        """Thought as the format's parser has it; content where no tag at its end may begin."""
        if self._read == self._content:
            firsts = "".join(close[:1] for close in self._marks.closes)
            return None if self._held else Passthrough("content", firsts)
        if self._read == self._parser.feed:
            return self._parser.passthrough()
        if self._read != self._thought or self._form.thought is None:
            return None
        first = self._form.thought.end[:1]
        thought = None if first in self._held else self._parser.passthrough()
        return thought and Passthrough(thought.kind, thought.stops + first)

    def finish(self) -> list[Part]:
        """What was held back."""
        held = self._held
        if self._read == self._content:
            closed = not held or held.startswith(self._marks.closes)
            return [] if closed else [ContentDelta(held)]
        if self._read == self._thought:
            return self._parser.finish()
        if self._form.trim and not held.strip():
            self._settled.append((len(held), False))
            return self._parser.finish()
        return [*self._parser.feed(held), *self._parser.finish()]

    def settled(self) -> list[tuple[int, bool]]:
        """Which characters are reasoning."""
        settled = [*self._parser.settled(), *self._settled]
        self._settled.clear()
        return settled

    def _start(self, text: str) -> list[Part]:
        """Where reasoning may begin."""
        self._held += text
        start = self._form.thought.start if self._form.thought else ""
        if start and not self._held.startswith(start) and start.startswith(self._held):
            return []
        text, self._held = self._held, ""
        begins = bool(start) and text.startswith(start)
        self._read = self._thought if begins else self._opening
        return self._read(text)

    def _thought(self, text: str) -> list[Part]:
        end = self._form.thought.end if self._form.thought else ""
        seen = self._held + text
        at = seen.find(end)
        if at < 0:
            self._held = seen[max(0, len(seen) - len(end) + 1) :]
            return self._parser.feed(text)
        behind = at + len(end) - len(self._held)
        self._held, self._marks, self._read = "", self._form.behind, self._opening
        thought = [*self._parser.feed(text[:behind]), *self._parser.end_reasoning()]
        return [*thought, *self._opening(text[behind:])]

    def _opening(self, text: str) -> list[Part]:
        """Where the answer begins, or calls."""
        self._held += text
        text = self._held.lstrip() if self._form.trim else self._held
        space = len(self._held) - len(text)
        for opening in self._marks.opens:
            if text.startswith(opening):
                return self._begin_content(space + len(opening))
        tags = (*self._marks.opens, *self._marks.calls)
        if not text or any(tag.startswith(text) for tag in tags):
            return []
        if text.startswith(self._marks.calls):
            text, self._held = self._held, ""
            self._read = self._parser.feed
            return self._read(text)
        return self._begin_content(space)

    def _begin_content(self, dropped: int) -> list[Part]:
        text, self._held = self._held[dropped:], ""
        self._settled.append((dropped, False))
        self._read = self._content
        return [*self._parser.finish(), *self._content(text)]

    def _content(self, text: str) -> list[Part]:
        self._settled.append((len(text), False))
        text = self._held + text
        end = self._begin_of_closing(text)
        self._held = text[end:]
        return [ContentDelta(text[:end])] if end else []

    def _begin_of_closing(self, text: str) -> int:
        """Where what may be the tag at the end begins."""
        closes = self._marks.closes
        longest = max(map(len, closes), default=0)
        for at in range(max(0, len(text) - longest), len(text)):
            if any(tag.startswith(text[at:]) for tag in closes):
                return at
        return len(text)


class OnlyCalls(Parser):
    """Parses an answer that a grammar forces to be calls: all else is markup that was cut off."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Part]:
        """The calls that are certain now."""
        return [part for part in self._parser.feed(text) if isinstance(part, ToolCallDelta)]

    def finish(self) -> list[Part]:
        """The rest of the last call."""
        return [part for part in self._parser.finish() if isinstance(part, ToolCallDelta)]
