"""Answers of `/v1/responses`: https://platform.openai.com/docs/api-reference/responses/object."""

from typing import Any, Literal

from pydantic import BaseModel

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(BaseModel):
    """Where input tokens came from."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """What output tokens were used for."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens", "content_filter", "cancelled"]


class ResponseError(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(BaseModel):
    """A response. Every field is always there; what was asked for is told as it was sent.

    `temperature`, `top_p` and the penalties are those that were used, whoever set them.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseError | None = None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool = True
    presence_penalty: float
    previous_response_id: str | None = None
    conversation: None = None
    prompt: None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str]


class DeletedResponse(BaseModel):
    """What is left of a response that was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(BaseModel):
    """Some of the input items of a response."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(BaseModel):
    """How many tokens a request's input has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
