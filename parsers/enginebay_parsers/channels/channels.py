"""Reasoning in separate messages, on a channel or to a recipient named in the header."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from enginebay import (
    AnswerMarks,
    AsideMarks,
    Part,
    Passthrough,
    ReasoningFormat,
    ReasoningParser,
    Span,
    ThoughtMarks,
)
from enginebay_parsers.channels.frames import Kind, MessageReader, Segment, Tags
from enginebay_parsers.stream.delta_builder import DeltaBuilder, ReasoningRanges


@dataclass(frozen=True, slots=True)
class Channels(ReasoningFormat):
    """Messages (`tags`) that are reasoning if their header matches `reasoning`, else the answer.

    `calls`: a pattern for the headers of messages that are left to the tool format.
    `evidence`: what marks a chat template whose model writes this.
    `opening`: the end of the header of reasoning. `end`: the tag after it.
    `answer`, `answer_or_call`: what leads from there to the answer, or to one of both.
    `to_user`: a pattern for the end of the text before the body of an answer.
    """

    tags: Tags
    reasoning: re.Pattern[str]
    calls: re.Pattern[str]
    evidence: str
    opening: str
    end: str
    answer: str
    answer_or_call: str
    to_user: str
    example: str = ""

    def matches(self, template: str) -> bool:
        """Whether the evidence occurs in the chat template."""
        return self.evidence in template

    def starts_inside(self, prompt: str) -> bool:
        """Whether the last message of the prompt is reasoning and has not ended."""
        last = prompt[max(prompt.rfind(self.tags.begin), 0) :]
        header, message, body = last.partition(self.tags.message)
        return (
            bool(message and self.reasoning.search(header + message))
            and self.tags.message not in body
            and not any(end in body for end in self.tags.ends)
        )

    def parser(
        self, *, inside: bool, spans: Sequence[Span] = (), spans_in_thought: bool = True
    ) -> ReasoningParser:
        """A parser for one choice.

        With `spans`, messages with `calls` are passed on whole: `begin`, `assistant` and the rest
        as written. Without, they are part of the channel that they are written on. All other
        headers and tags are dropped.
        """
        return _ChannelsParser(self, inside, bool(spans), spans_in_thought)

    def marks(self, *, tools: bool) -> ThoughtMarks:
        """The header and end of reasoning; what closes it opens the next message, too."""
        following = self.answer_or_call if tools else self.answer
        tags = (self.tags.begin, self.tags.channel, *self.tags.ends)
        others = tuple(tag for tag in tags if tag and tag != self.end)
        return ThoughtMarks(self.opening, self.end, self.end + following, others)

    def asides(self) -> tuple[AsideMarks, ...]:
        """All headers, which may lack their beginning, and the messages that are no answers."""
        tags, ends = self.tags, (self.tags.message,)
        starts = tuple(filter(None, (tags.begin, tags.channel, *tags.ends)))
        headless = AsideMarks(starts=(" to=",), ends=ends, header=self.to_user, comes="first")
        return AsideMarks(starts=starts, ends=ends, header=self.to_user), headless

    def answer_marks(self, *, behind_thought: bool) -> AnswerMarks:
        """A message to the user; its role is in the prompt where the completion begins with it."""
        role = f"{self.tags.begin}assistant"
        opening = self.answer if behind_thought else self.answer.removeprefix(role)
        return AnswerMarks((opening,), required=True, calls=("",))

    def syntax(self) -> tuple[str, ...]:
        """The tags of messages."""
        return self.tags.texts


class _ChannelsParser(ReasoningParser):
    def __init__(self, form: Channels, inside: bool, calls: bool, calls_in_reasoning: bool) -> None:
        self._form = form
        self._reader = MessageReader(form.tags, in_body=inside)
        self._calls = calls
        self._calls_in_reasoning = calls_in_reasoning
        self._in_reasoning = inside
        self._in_call = False
        self._deltas = DeltaBuilder()
        self._ranges = ReasoningRanges()

    def feed(self, text: str) -> list[Part]:
        return self._read(self._reader.feed(text))

    def passthrough(self) -> Passthrough | None:
        stops = self._reader.stops()
        kind: Literal["reasoning", "content"] = "reasoning" if self._in_reasoning else "content"
        return None if stops is None else Passthrough(kind, stops)

    def finish(self) -> list[Part]:
        return self._read(self._reader.finish())

    def settled(self) -> list[tuple[int, bool]]:
        return self._ranges.take()

    def _read(self, segments: Iterable[Segment]) -> list[Part]:
        for kind, text in segments:
            if kind is Kind.HEADER:
                self._begin(text)
            self._ranges.add(len(text), reasoning=self._in_reasoning)
            if kind is Kind.BODY and self._in_reasoning:
                self._deltas.reasoning(text)
            elif kind is Kind.BODY or (kind is Kind.END and self._in_call):
                self._deltas.content(text)
            if kind is Kind.END:
                self._in_reasoning = self._in_call = False
        return self._deltas.take()

    def _begin(self, header: str) -> None:
        tags = self._form.tags
        is_reasoning = self._form.reasoning.search(header) is not None
        may_call = self._calls and (self._calls_in_reasoning or not is_reasoning)
        is_whole = header.endswith(tags.message)
        self._in_call = may_call and is_whole and self._form.calls.search(header) is not None
        self._in_reasoning = is_reasoning and not self._in_call
        if self._in_call:
            begun = header.startswith(tags.begin)
            self._deltas.content(header if begun else f"{tags.begin}assistant{header}")
