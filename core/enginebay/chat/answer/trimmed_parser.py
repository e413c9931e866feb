"""Reasoning and answer without the whitespace that templates write around them."""

from collections.abc import Iterable
from dataclasses import replace

from enginebay.contract.formats import Margins, Passthrough, ReasoningParser
from enginebay.contract.types import ContentDelta, Part, ReasoningDelta


class TrimmedParser(ReasoningParser):
    """Leaves the `margins` out of the parts of `parser`, as far as the model has written them.

    Whitespace that may be the margin after reasoning is held back. It is part of the reasoning if
    more follows, or if the text ends before the reasoning does.
    """

    def __init__(self, parser: ReasoningParser, margins: Margins) -> None:
        self._parser = parser
        self._lead = margins.lead  # what of the margin may still come
        self._gap = ""
        self._margins = margins
        self._tail = ""  # held back
        self._is_thought = False  # the last part was
        self._settled: list[tuple[int, bool]] = []

    def feed(self, text: str) -> list[Part]:
        """Parts that are certain now."""
        return self._trimmed(self._parser.feed(text))

    def passthrough(self) -> Passthrough | None:
        """The parser's, where no margin is due."""
        known = self._parser.passthrough()
        if known is None or self._tail:
            return None
        if known.kind == "content":
            return None if self._gap else known
        return None if self._lead else replace(known, stops=known.stops + self._margins.tail[:1])

    def finish(self) -> list[Part]:
        """What was held back."""
        parts = self._trimmed(self._parser.finish())
        return [*parts, ReasoningDelta(self._tail)] if self._tail and self._is_thought else parts

    def settled(self) -> list[tuple[int, bool]]:
        """Which characters are reasoning; margins are what the text around them is."""
        settled, self._settled = self._settled, []
        return settled

    def end_reasoning(self) -> list[Part]:
        """What was held back where a grammar has ended reasoning."""
        return self._trimmed(self._parser.end_reasoning())

    def _trimmed(self, parts: Iterable[Part]) -> list[Part]:
        settled = self._parser.settled()
        self._settled += settled
        if settled and settled[0][1]:
            self._gap = self._margins.gap
        trimmed: list[Part] = []
        for part in parts:
            if isinstance(part, ReasoningDelta):
                self._is_thought = True
                self._gap = self._margins.gap
                if text := self._thought(part.text):
                    trimmed.append(ReasoningDelta(text))
            elif isinstance(part, ContentDelta):
                self._is_thought = False
                text, self._gap = _without(part.text, self._gap) if self._gap else (part.text, "")
                if text:
                    trimmed.append(ContentDelta(text, part.logprobs))
        return trimmed

    def _thought(self, text: str) -> str:
        text, self._lead = _without(text, self._lead)
        text, self._tail = self._tail + text, ""
        tail = self._margins.tail
        held = next((n for n in range(len(tail), 0, -1) if text.endswith(tail[-n:])), 0)
        self._tail = text[len(text) - held :]
        return text[: len(text) - held]


def _without(text: str, margin: str) -> tuple[str, str]:
    """A text without its beginning that is a margin, and what of the margin may still come."""
    length = 0
    while length < min(len(text), len(margin)) and text[length] == margin[length]:
        length += 1
    return text[length:], margin[length:] if length == len(text) else ""
