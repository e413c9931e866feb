"""Answers of `/v1/messages`, whole and as events: https://docs.claude.com/en/api/streaming."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from enginebay.chat.schemas.usage_bodies import Usage

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "refusal",
    "model_context_window_exceeded",
]


class TextOut(BaseModel):
    """A text."""

    type: Literal["text"] = "text"
    text: str


class ThinkingOut(BaseModel):
    """A thought; clients send it back only with a `signature`."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseOut(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: Mapping[str, Any]


BlockOut = TextOut | ThinkingOut | ToolUseOut


class OutputTokensDetails(BaseModel):
    """How many tokens of the answer are thought."""

    thinking_tokens: int


class TokenUsage(BaseModel):
    """The three counts of the input are disjoint: their sum is the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails


class MessageUsage(TokenUsage):
    """The usage of a message, with how it was served."""

    service_tier: Literal["standard"] = "standard"


def usage_counts(usage: Usage) -> dict[str, Any]:
    """The fields of a `TokenUsage`."""
    thought = usage.reasoning_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": OutputTokensDetails(thinking_tokens=thought),
    }


class OutputMessage(BaseModel):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: Sequence[BlockOut]
    stop_reason: StopReason | None
    stop_sequence: str | None = None
    stop_details: None = None
    usage: MessageUsage


class CountedTokens(BaseModel):
    """The tokens of a prompt."""

    input_tokens: int


class Event(BaseModel):
    """What a stream sends at once; `type` is also the event's name."""

    type: str


class MessageStart(Event):
    """The first event."""

    type: Literal["message_start"] = "message_start"
    message: OutputMessage


class Ping(Event):
    """An event without a meaning."""

    type: Literal["ping"] = "ping"


class BlockStart(Event):
    """A block begins; it is still empty."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: BlockOut


class TextDelta(BaseModel):
    """More of a text."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(BaseModel):
    """More of a thought."""

    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class SignatureDelta(BaseModel):
    """What ends a thought."""

    type: Literal["signature_delta"] = "signature_delta"
    signature: str


class InputDelta(BaseModel):
    """More of the JSON of a call's input."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class BlockDelta(Event):
    """The open block goes on."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Event):
    """The open block is complete."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class EndOfMessage(BaseModel):
    """Why the answer ends."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(Event):
    """The end of the answer, with its final counts."""

    type: Literal["message_delta"] = "message_delta"
    delta: EndOfMessage
    usage: TokenUsage


class MessageStop(Event):
    """The last event."""

    type: Literal["message_stop"] = "message_stop"


class ErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class ErrorEvent(Event):
    """The last event of a stream that fails."""

    type: Literal["error"] = "error"
    error: ErrorDetail
