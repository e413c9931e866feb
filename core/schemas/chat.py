"""Bodies of `/v1/chat/completions`: https://platform.openai.com/docs/api-reference/chat."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.schemas.common import FinishReason, GenerationBody, Usage, aliased


class ContentPart(BaseModel):
    """One part of a message's content; only `text` parts are understood so far."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class FunctionCall(BaseModel):
    """A call in the history. Some clients send the arguments as an object."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(BaseModel):
    """A tool call of an earlier assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """A message of the conversation so far."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = aliased("reasoning_content", "reasoning")


class FunctionDefinition(BaseModel):
    """What a function is called and which arguments it takes (JSON Schema)."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool the model may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: FunctionDefinition


class NamedToolChoice(BaseModel):
    """`tool_choice` as an object."""

    model_config = ConfigDict(extra="allow")

    type: str


class ResponseFormat(BaseModel):
    """`response_format` of OpenAI."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema"]


class ChatCompletionRequest(GenerationBody):
    """A chat completion request."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = aliased("chat_template_kwargs", "template_vars")
    add_generation_prompt: bool = True

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools the model may call: none with `tool_choice: none`."""
        return [] if self.tool_choice == "none" else self.tools or []


class TopLogprob(BaseModel):
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
    """The answer of one choice."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallOut] | None = None


class ChatChoice(BaseModel):
    """One choice of a whole answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class ChatCompletion(BaseModel):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """What a choice's message gained."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallOut] | None = None


class ChatChunkChoice(BaseModel):
    """The one choice of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
