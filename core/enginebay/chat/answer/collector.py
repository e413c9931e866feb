"""The pipeline of one choice: delta text → reasoning parser → tool parser → parts.

Deltas of a chat already have parts, which enter the pipeline after the parsers. A stream sends each
part as it arrives; a non-streaming response joins the same parts.
"""

import re
from collections.abc import Callable, Iterable
from typing import Literal

from enginebay.chat.answer.parts import attach_logprobs, content_of, joined
from enginebay.chat.answer.reasoning_tokens import ThoughtTokens
from enginebay.chat.schemas.half_characters import WholeJson
from enginebay.contract.errors import ServingError
from enginebay.contract.formats import (
    Parser,
    Passthrough,
    ReasoningParser,
    is_json,
    new_call_id,
)
from enginebay.contract.types import (
    ContentDelta,
    Delta,
    FinishReason,
    Part,
    ReasoningDelta,
    RefusalDelta,
    TokenLogprob,
    ToolCallDelta,
)

Phase = Literal["reasoning", "content", "tool"]

OPENING_TAG, CLOSING_TAG = "<think>", "</think>"
"""Put around reasoning inside the content, whatever the model writes: clients know these tags."""


class Collector:
    """Splits one choice into reasoning, content and tool calls.

    `trim`: leading whitespace is held back until there is real text, and dropped if none comes, so
    that a blank line after `</think>` does not make an empty answer look like one.
    `merge`: reasoning stays part of the content, between tags. `one_call`: all calls but the first
    are left out. `named_call`: the client named the function, so a call is no reason to end.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: Parser | None = None,
        *,
        starts_in_reasoning: bool = False,
        trim: bool = False,
        merge: bool = False,
        one_call: bool = False,
        named_call: bool = False,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._trim = trim
        self._merge = merge
        self._one_call = one_call
        self._named_call = named_call
        self._tag_is_open = False  # in merged content
        self._thought_tokens = ThoughtTokens()
        self._new_call_id = new_call_id
        self._phase: Phase = "reasoning" if starts_in_reasoning else "content"
        self._space: str | None = "" if trim else None  # held white space; None: not holding
        self._logprobs: list[TokenLogprob] = []  # of content that has not been sent yet
        self._held_logprobs: list[TokenLogprob] = []  # of text a parser holds: a tag, or content
        self._calls: dict[int, int] = {}  # numbers on the wire, by those that pieces have
        self._arguments: list[list[str]] = []  # of each call, in pieces
        self._whole: list[WholeJson] = []  # what reads them
        self.finished = False
        self._stops = ""  # the characters that `_stop` searches for
        self._stop: Callable[[str], object] | None = None
        self._passthrough = self._find_passthrough()

    @property
    def reasons(self) -> bool:
        """Whether reasoning is separated from content."""
        return self._reasoning is not None

    @property
    def tool_calls(self) -> int:
        """How many calls there are so far."""
        return len(self._calls)

    @property
    def end(self) -> FinishReason:
        """The `finish_reason` of an answer that ended normally.

        `length` if a call has arguments that are no JSON, since a model that is not constrained may
        end inside one: nobody should run such a call, and what was streamed cannot be taken back.
        """
        if any(not is_json("".join(pieces)) for pieces in self._arguments):
            return "length"
        return "tool_calls" if self._calls and not self._named_call else "stop"

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens so far are reasoning, see `ThoughtTokens`."""
        return self._thought_tokens.count

    def feed(self, delta: Delta) -> list[Part]:
        """The parts this delta completes; everything still held back once it has a `finish_reason`.

        `ServingError` for a call without a name.
        """
        text, pieces = delta.text, delta.pieces
        if (
            self._passthrough
            and text
            and not delta.finish_reason
            and (self._stop is None or not self._stop(text))
            and (not pieces or pieces[-1][0])  # it does not end in tokens of the text that follows
        ):
            if self._passthrough == "content":
                return [ContentDelta(text, delta.logprobs or ())]
            self._thought_tokens.count += len(delta.token_ids)
            return [ContentDelta(text) if self._merge else ReasoningDelta(text)]
        parts = self._feed(delta)
        self._passthrough = self._find_passthrough()
        return parts

    def _feed(self, delta: Delta) -> list[Part]:
        if self._reasoning:
            for piece in delta.pieces or ((len(delta.text), len(delta.token_ids)),):
                self._thought_tokens.add(*piece)
        parts = self._parse(delta.text) if delta.text else list(delta.parts)
        if len(parts) == 1 and self._goes_on(delta, parts[0]):
            return parts
        phase = self._phase
        result = self._track(parts)
        logprobs = self._take_logprobs(delta, phase, parts)
        if delta.finish_reason:
            self.finished = True
            result += self._track(self._flush())
            for number, whole in enumerate(self._whole):
                if rest := whole.finish():  # of a call that was cut
                    result.append(ToolCallDelta(number, None, rest))
            if self._phase != "reasoning":
                result += self._close_tag()
            logprobs += (*self._logprobs, *self._held_logprobs)
            if logprobs and self._phase == "content" and not (self._space or content_of(result)):
                result.append(ContentDelta(""))  # for tokens without text at the end
        return attach_logprobs(joined(result), logprobs)

    def _find_passthrough(self) -> Literal["content", "reasoning"] | None:
        """What texts without any of `_stops` are, as long as nothing else is fed.

        None where a parser has to see them, or something is held back or due in front of them.
        """
        if self._phase == "tool" or self._logprobs or self._held_logprobs:
            return None
        if not self._thought_tokens.decided:
            return None
        thought = self._reasoning.passthrough() if self._reasoning else Passthrough("content")
        if thought is None or thought.kind != self._phase:
            return None
        stops = thought.stops
        if self._phase == "reasoning":
            if self._merge and not self._tag_is_open:
                return None
        else:
            calls = self._tools.passthrough() if self._tools else Passthrough("content")
            if calls is None or self._space is not None:
                return None
            stops += calls.stops
        if stops != self._stops:
            self._stops = stops
            self._stop = re.compile(f"[{re.escape(stops)}]").search if stops else None
        return thought.kind

    def _goes_on(self, delta: Delta, part: Part) -> bool:
        """Whether a part continues the kind of the last one, with nothing held back or pending."""
        logprobs = delta.logprobs or self._logprobs or self._held_logprobs
        if logprobs or delta.finish_reason or self._merge:
            return False
        if isinstance(part, ContentDelta):
            return self._phase == "content" and self._space is None
        return isinstance(part, ReasoningDelta) and self._phase == "reasoning"

    def _parse(self, text: str) -> list[Part]:
        if self._reasoning is None:
            return self._parse_tools([ContentDelta(text)])
        parts = self._reasoning.feed(text)
        self._thought_tokens.settle(self._reasoning.settled())
        return self._parse_tools(parts)

    def _flush(self) -> list[Part]:
        parts: list[Part] = []
        if self._reasoning:
            parts = self._parse_tools(self._reasoning.finish())
            self._thought_tokens.settle(self._reasoning.settled())
        return parts + (self._tools.finish() if self._tools else [])

    def _parse_tools(self, parts: Iterable[Part]) -> list[Part]:
        if self._tools is None:
            return list(parts)
        result: list[Part] = []
        for part in parts:
            result += self._tools.feed(part.text) if isinstance(part, ContentDelta) else [part]
        return result

    def _track(self, parts: Iterable[Part]) -> list[Part]:
        """Track the phase, hold back whitespace, assign ids to calls."""
        result: list[Part] = []
        for part in parts:
            match part:
                case ContentDelta():
                    self._phase = "content"
                    result += self._content(part)
                    continue
                case ReasoningDelta(text):
                    self._phase = "reasoning"
                    if self._merge:
                        part = ContentDelta(text if self._tag_is_open else OPENING_TAG + text)
                        self._tag_is_open = True
                case RefusalDelta():
                    self._phase = "content"
                    result += self._close_tag()
                case ToolCallDelta():
                    self._phase = "tool"
                    result += [*self._close_tag(), *self._call(part)]
            self._space = "" if self._trim else None
            if not isinstance(part, ToolCallDelta):
                result.append(part)
        return result

    def _call(self, part: ToolCallDelta) -> list[Part]:
        """A call delta as clients get it: numbered from 0, with name and id only on the first."""
        number = self._calls.get(part.index)
        if number is not None:
            arguments = self._whole[number].feed(part.arguments)
            self._arguments[number].append(arguments)
            return [ToolCallDelta(number, None, arguments)]
        if self._one_call and self._calls:
            return []
        if part.name is None:
            raise ServingError("the model called a function without a name")
        number = self._calls[part.index] = len(self._calls)
        self._whole.append(WholeJson())
        arguments = self._whole[number].feed(part.arguments)
        self._arguments.append([arguments])
        return [ToolCallDelta(number, part.name, arguments, part.id or self._new_call_id())]

    def _content(self, part: ContentDelta) -> list[Part]:
        text = part.text
        if self._space is not None:
            text = self._space + text
            if not text.strip():
                self._space = text
                return []
            self._space = None
        return [*self._close_tag(), ContentDelta(text, part.logprobs)]

    def _close_tag(self) -> list[Part]:
        was_open, self._tag_is_open = self._tag_is_open, False
        return [ContentDelta(CLOSING_TAG)] if was_open else []

    def _take_logprobs(
        self, delta: Delta, phase: Phase, parts: list[Part]
    ) -> tuple[TokenLogprob, ...]:
        """Logprobs for the content of this delta.

        They are collected from deltas whose text became content and nothing else, so not from one
        that opened or closed a tag, and wait for the next content if theirs is held back. Those of
        a chat are its content's.
        """
        if not (delta.logprobs or self._logprobs or self._held_logprobs):
            return ()
        entries = delta.logprobs or ()
        if delta.parts:
            return entries
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
