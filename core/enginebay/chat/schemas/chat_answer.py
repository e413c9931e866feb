"""Answers of `/v1/chat/completions`: https://platform.openai.com/docs/api-reference/chat."""

from typing import Literal

from pydantic import BaseModel
from typing_extensions import TypedDict  # pydantic knows only this one before Python 3.12

from enginebay.chat.schemas.usage_bodies import PromptLogprobs, WireAnswer
from enginebay.contract.types import FinishReason


class TopLogprob(TypedDict):  # made for every token: a model would cost several times as much
    """A candidate token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer with its candidates."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Logprobs of a message's content."""

    content: list[TokenLogprob]


class CalledFunction(BaseModel):
    """Name and arguments (JSON text); in a delta only what is new."""

    name: str | None = None
    arguments: str


class ToolCallOut(BaseModel):
    """A tool call of the answer; `index`, in deltas only, says which call a piece belongs to."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class AssistantMessage(BaseModel):
    """The answer of one choice; `function_call` is for requests with the old `functions`."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallOut] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(BaseModel):
    """One choice of a non-streaming response."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatCompletion(WireAnswer):
    """The non-streaming response."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatDelta(BaseModel):
    """What a choice's message gained."""

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallOut] | None = None
    function_call: CalledFunction | None = None


class ChatChunkChoice(BaseModel):
    """The one choice of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(WireAnswer):
    """One event of a streamed answer; prompt information comes with the first."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
