"""The pipe of one choice: delta text → reasoning parser → tool parser → parts.

The streamed answer sends each part as it falls out, the whole answer joins the same parts.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from core.parsing import Parser, new_call_id
from core.types import (
    ContentDelta,
    Delta,
    Part,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
)

Phase = Literal["reasoning", "content", "tool"]


class Collector:
    """Splits one choice into reasoning, content and tool calls.

    `trim`: white space in front of content is held until there is real text, and dropped if none
    comes, so that a blank line after `</think>` does not make an empty answer look like one.
    """

    def __init__(
        self,
        reasoning: Parser | None = None,
        tools: Parser | None = None,
        *,
        starts_in_reasoning: bool = False,
        trim: bool = False,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._trim = trim
        self._new_call_id = new_call_id
        self._phase: Phase = "reasoning" if starts_in_reasoning else "content"
        self._space: str | None = "" if trim else None  # held white space; None: not holding
        self._logprobs: list[TokenLogprob] = []  # of content that has not been sent yet
        self._held_logprobs: list[TokenLogprob] = []  # of text a parser holds: a tag, or content
        self.has_tool_calls = False
        self.finished = False

    def feed(self, delta: Delta) -> list[Part]:
        """The parts this delta completes; all that is left once it has a `finish_reason`."""
        parts = self._parse(delta.text) if delta.text else []
        phase = self._phase
        result = self._track(parts)
        logprobs = self._take_logprobs(delta, phase, parts)
        if delta.finish_reason:
            self.finished = True
            result += self._track(self._flush())
            logprobs += (*self._logprobs, *self._held_logprobs)
        return _attach(_join(result), logprobs)

    def _parse(self, text: str) -> list[Part]:
        parts: list[Part] = self._reasoning.feed(text) if self._reasoning else [ContentDelta(text)]
        return self._parse_tools(parts)

    def _flush(self) -> list[Part]:
        parts = self._parse_tools(self._reasoning.finish() if self._reasoning else [])
        return parts + (self._tools.finish() if self._tools else [])

    def _parse_tools(self, parts: Iterable[Part]) -> list[Part]:
        if self._tools is None:
            return list(parts)
        result: list[Part] = []
        for part in parts:
            result += self._tools.feed(part.text) if isinstance(part, ContentDelta) else [part]
        return result

    def _track(self, parts: Iterable[Part]) -> list[Part]:
        """Follow the phase, hold white space, give ids to calls."""
        result: list[Part] = []
        for part in parts:
            match part:
                case ContentDelta(text):
                    self._phase = "content"
                    result += self._content(text)
                    continue
                case ReasoningDelta():
                    self._phase = "reasoning"
                case ToolCallDelta(index, name, arguments, id):
                    self._phase = "tool"
                    self.has_tool_calls = True
                    if name is not None:
                        part = ToolCallDelta(index, name, arguments, id or self._new_call_id())
            self._space = "" if self._trim else None
            result.append(part)
        return result

    def _content(self, text: str) -> list[Part]:
        if self._space is not None:
            text = self._space + text
            if not text.strip():
                self._space = text
                return []
            self._space = None
        return [ContentDelta(text)]

    def _take_logprobs(
        self, delta: Delta, phase: Phase, parts: list[Part]
    ) -> tuple[TokenLogprob, ...]:
        """Logprobs for the content of this delta.

        They are collected from deltas whose text became content and nothing else, so not from one
        that opened or closed a tag, and wait for the next content if theirs is held back.
        """
        entries = delta.logprobs or ()
        if not all(isinstance(part, ContentDelta) for part in parts):
            self._logprobs.clear()
            self._held_logprobs.clear()
            return ()
        text = "".join(part.text for part in parts if isinstance(part, ContentDelta))
        if not parts:
            if phase == "content":
                (self._held_logprobs if delta.text else self._logprobs).extend(entries)
            return ()
        if len(text) > len(delta.text):
            self._logprobs += self._held_logprobs
        self._held_logprobs.clear()
        if text.endswith(delta.text):
            self._logprobs += entries
        if self._space is not None:
            return ()
        logprobs = tuple(self._logprobs)
        self._logprobs.clear()
        return logprobs


def _attach(parts: list[Part], logprobs: tuple[TokenLogprob, ...]) -> list[Part]:
    """Give `logprobs` to the last content part."""
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i]
        if logprobs and isinstance(part, ContentDelta):
            parts[i] = ContentDelta(part.text, logprobs)
            break
    return parts


def _join(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of one kind as one part."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        match last, part:
            case ContentDelta(a), ContentDelta(b):
                joined[-1] = ContentDelta(a + b)
            case ReasoningDelta(a), ReasoningDelta(b):
                joined[-1] = ReasoningDelta(a + b)
            case ToolCallDelta(i, name, a, id), ToolCallDelta(j, None, b) if i == j:
                joined[-1] = ToolCallDelta(i, name, a + b, id)
            case _:
                joined.append(part)
    return joined
