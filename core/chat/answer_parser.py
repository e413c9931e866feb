"""Thought, and then an answer in which nothing is a tag."""

from core.parsing import ReasoningParser, ThoughtMarks
from core.types import ContentDelta, Part


class AnswerParser(ReasoningParser):
    """For content that keeps to a grammar: a string in JSON may say `</think>`, and stays so.

    `thought` is the format's own parser, which gets what comes up to the first end tag; no thought
    is anything that does not begin with the start tag, if the prompt has not begun it (`inside`).
    """

    def __init__(self, thought: ReasoningParser, marks: ThoughtMarks, *, inside: bool) -> None:
        self._thought = thought
        self._marks = marks
        self._inside = inside
        self._answering = False
        self._held = ""  # may be the beginning of the start tag
        self._tail = ""  # may be the beginning of the end tag
        self._settled: list[tuple[int, bool]] = []

    def feed(self, text: str) -> list[Part]:
        """Parts that are certain now."""
        if self._answering:
            self._settled.append((len(text), False))
            return [ContentDelta(text)]
        if not self._inside:
            self._held += text
            if len(self._held) < len(self._marks.start) and self._opens(self._held):
                return []
            text, self._held = self._held, ""
            if not self._opens(text):
                return self._answer(text)
            self._inside = True
        seen = self._tail + text
        at = seen.find(self._marks.end)
        if at < 0:
            self._tail = seen[max(0, len(seen) - len(self._marks.end) + 1) :]
            return self._thought.feed(text)
        end = at + len(self._marks.end) - len(self._tail)
        return [
            *self._thought.feed(text[:end]),
            *self._thought.finish(),
            *self._answer(text[end:]),
        ]

    def finish(self) -> list[Part]:
        """What was held back."""
        if self._answering:
            return []
        return self._thought.finish() if self._inside else self._answer(self._held)

    def settled(self) -> list[tuple[int, bool]]:
        """Which characters are thought."""
        settled = [*self._thought.settled(), *self._settled]
        self._settled.clear()
        return settled

    def _opens(self, text: str) -> bool:
        start = self._marks.start
        return text.startswith(start) or start.startswith(text)

    def _answer(self, text: str) -> list[Part]:
        self._answering = True
        return self.feed(text) if text else []
