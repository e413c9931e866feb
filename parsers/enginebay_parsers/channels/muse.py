"""Muse: messages to itself are reasoning, those to the user the answer; others may hold calls."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from enginebay import (
    CallGrammar,
    Parser,
    Part,
    Passthrough,
    Schemas,
    Span,
    ToolCallDelta,
    ToolFormat,
)
from enginebay_parsers.channels.frames import Kind, MessageReader, Segment, Tags
from enginebay_parsers.stream.delta_builder import DeltaBuilder

TAGS = Tags(
    begin="<|start|>", message="<|message|>", ends=("<|eom|>", "<|eot|>"), call=re.compile("(?!)")
)
TO_ONESELF = re.compile(r"to=self\b")
TO_OTHERS = re.compile(r"^(?!.*to=self\b)")
TO_USER = r"(?: to=(?!self\b)\S*|<\|start\|>\w*)\s*$"
_TO_USER = re.compile(r"to=user\b")


@dataclass(frozen=True, slots=True)
class MuseCalls(ToolFormat):
    """`calls` in messages to anybody but the user, to whom they are only quoted.

    Text without a header, which the prompt may have, can hold calls.
    """

    calls: ToolFormat
    example: str = ""
    spans: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", self.calls.spans)

    def matches(self, template: str) -> bool:
        """Whether the chat template looks like one that teaches these calls."""
        return self.calls.matches(template)

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice. Headers and ends of messages are dropped."""
        return _MuseParser(self.calls, schemas)

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar | None:
        """How calls are written, without the headers of their messages."""
        return self.calls.grammar(schemas, parallel=parallel)

    def syntax(self) -> tuple[str, ...]:
        """The tags of messages and of calls."""
        return (*TAGS.texts, *self.calls.syntax())


class _MuseParser(Parser):
    def __init__(self, calls: ToolFormat, schemas: Schemas | None) -> None:
        self._format = calls
        self._schemas = schemas
        self._reader = MessageReader(TAGS)
        self._deltas = DeltaBuilder()
        self._calls: Parser | None = calls.parser(schemas)  # None in a message to the user
        self._numbers: dict[int, int] = {}  # of the calls of this message
        self._count = 0

    def feed(self, text: str) -> list[Part]:
        self._read(self._reader.feed(text))
        return self._deltas.take()

    def passthrough(self) -> Passthrough | None:
        stops = self._reader.stops()
        calls = self._calls.passthrough() if self._calls else Passthrough("content")
        if stops is None or calls is None:
            return None
        return Passthrough("content", stops + calls.stops)

    def finish(self) -> list[Part]:
        self._read(self._reader.finish())
        self._end_message()
        return self._deltas.take()

    def _read(self, segments: Iterable[Segment]) -> None:
        for kind, text in segments:
            if kind is Kind.BODY and self._calls is None:
                self._deltas.content(text)
            elif kind is Kind.BODY and self._calls is not None:
                self._pass_on(self._calls.feed(text))
            elif kind is Kind.HEADER:
                self._end_message()
                to_user = _TO_USER.search(text) is not None
                self._calls = None if to_user else self._format.parser(self._schemas)
            elif kind is Kind.END:
                self._end_message()
                self._calls = self._format.parser(self._schemas)

    def _end_message(self) -> None:
        if self._calls is not None:
            self._pass_on(self._calls.finish())
        self._calls = None
        self._numbers.clear()

    def _pass_on(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if not isinstance(part, ToolCallDelta):
                self._deltas.content(part.text)
                continue
            if part.name is not None:
                self._numbers[part.index] = self._count
                self._count += 1
                self._deltas.name(self._numbers[part.index], part.name, part.id)
            self._deltas.arguments(self._numbers[part.index], part.arguments)
