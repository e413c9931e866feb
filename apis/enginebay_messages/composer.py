"""Answers of the Messages API, streamed and whole."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from enginebay.apis.compose_items import ItemComposer
from enginebay.apis.items import Item
from enginebay.chat.answer.composer import Frame
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.half_characters import whole_json
from enginebay.contract.errors import ServingError
from enginebay.contract.types import TokenLogprob
from enginebay.serving.answer import Planned
from enginebay_messages.answer_bodies import (
    BlockDelta,
    BlockOut,
    BlockStart,
    BlockStop,
    EndOfMessage,
    ErrorDetail,
    ErrorEvent,
    Event,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputMessage,
    Ping,
    SignatureDelta,
    StopReason,
    TextDelta,
    TextOut,
    ThinkingDelta,
    ThinkingOut,
    TokenUsage,
    ToolUseOut,
    usage_counts,
)
from enginebay_messages.errors import anthropic_error
from enginebay_messages.request_bodies import MessagesRequest

_SIGNATURE = "bm90IHNpZ25lZA=="
"""Of every thought: clients want one, and send it back; nothing is signed here."""


class MessageComposer(ItemComposer):
    """The answer to `body`, which was `planned` as a chat."""

    def __init__(self, body: MessagesRequest, planned: Planned[ChatCompletionRequest]) -> None:
        head, generation = planned.head, planned.generation
        super().__init__(
            head.id, generation.counter, planned.logprob_form, tells_reasoning=body.thinks
        )
        self._model = head.model
        self._context_length = planned.plan.model.info.context_length
        self._max_tokens = body.max_tokens
        self._stops = frozenset(body.stop_sequences or ())
        self._omits_thought = body.thinking is not None and body.thinking.display == "omitted"

    def opening(self) -> Iterator[Frame]:
        yield _frame(MessageStart(message=self._message([], None, None)))
        yield _frame(Ping())

    def opened(self, item: Item) -> Iterator[Frame]:
        yield _frame(BlockStart(index=item.number, content_block=_empty(item)))
        if item.kind == "call":
            yield _delta(item, "")

    def gained(
        self, item: Item, text: str, logprobs: Sequence[TokenLogprob], stamp: str | None = None
    ) -> Frame | None:
        return None if self._omits(item) else _delta(item, text)

    def closed(self, item: Item) -> Iterator[Frame]:
        if item.kind == "reasoning":
            signed = SignatureDelta(signature=_SIGNATURE)
            yield _frame(BlockDelta(index=item.number, delta=signed))
        elif item.kind == "call" and not item.text.strip():
            yield _delta(item, "{}")
        yield _frame(BlockStop(index=item.number))

    def closing(self) -> Iterator[Frame]:
        reason, sequence = self._end()
        yield _frame(
            MessageDelta(
                delta=EndOfMessage(stop_reason=reason, stop_sequence=sequence),
                usage=TokenUsage(**usage_counts(self.counter.usage)),
            )
        )
        yield _frame(MessageStop())

    def failed(self, error: ServingError) -> list[Frame]:
        detail = ErrorDetail(**anthropic_error(error, error.status))
        return [_frame(ErrorEvent(error=detail))]

    def whole_json(self) -> bytes:
        blocks = [self._block(item) for item in self.items.all]
        return self._message(blocks, *self._end()).model_dump_json().encode()

    def _message(
        self, content: Sequence[BlockOut], reason: StopReason | None, sequence: str | None
    ) -> OutputMessage:
        return OutputMessage(
            id=self.id,
            model=self._model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=MessageUsage(**usage_counts(self.counter.usage)),
        )

    def _block(self, item: Item) -> BlockOut:
        match item.kind:
            case "reasoning":
                thought = "" if self._omits_thought else item.text
                return ThinkingOut(thinking=thought, signature=_SIGNATURE)
            case "call":
                return ToolUseOut(id=item.call_id, name=item.name, input=_input(item.text))
            case _:
                return TextOut(text=item.text)

    def _omits(self, item: Item) -> bool:
        return self._omits_thought and item.kind == "reasoning"

    def _end(self) -> tuple[StopReason, str | None]:
        """Why the answer ended, and the stop sequence that ended it."""
        reason = self.finish_reason
        refused = any(item.kind == "refusal" for item in self.items.all)
        if reason == "content_filter" or (refused and reason == "stop"):
            return "refusal", None
        if reason == "length":
            return self._length(), None
        if reason != "abort" and self.items.calls:
            return "tool_use", None
        if self.stop_reason in self._stops:
            return "stop_sequence", str(self.stop_reason)
        return "end_turn", None

    def _length(self) -> StopReason:
        usage, window = self.counter.usage, self._context_length
        full = window and usage.total_tokens >= window
        if full and usage.completion_tokens < self._max_tokens:
            return "model_context_window_exceeded"
        return "max_tokens"


def _empty(item: Item) -> BlockOut:
    match item.kind:
        case "reasoning":
            return ThinkingOut(thinking="", signature="")
        case "call":
            return ToolUseOut(id=item.call_id, name=item.name, input={})
        case _:
            return TextOut(text="")


def _delta(item: Item, text: str) -> Frame:
    match item.kind:
        case "reasoning":
            delta: TextDelta | ThinkingDelta | InputDelta = ThinkingDelta(thinking=text)
        case "call":
            delta = InputDelta(partial_json=text)
        case _:
            delta = TextDelta(text=text)
    return _frame(BlockDelta(index=item.number, delta=delta))


def _input(arguments: str) -> Mapping[str, Any]:
    """The arguments of a call, as far as they can be read: it may have been cut."""
    try:
        read = from_json(whole_json(arguments), allow_partial=True)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _frame(event: Event) -> Frame:
    return Frame(event.model_dump_json().encode(), event.type)
