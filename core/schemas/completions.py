"""Bodies of `/v1/completions`: https://platform.openai.com/docs/api-reference/completions."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from core.schemas.common import FinishReason, GenerationBody, Usage

MAX_PROMPTS = 256

TokenIds = list[int]


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _prompt_shape(value: Any) -> Any:
    """One error for a wrong prompt; a union would collect one for each item and branch."""
    if isinstance(value, str) or _is_token_ids(value):
        return value
    if isinstance(value, list) and (
        all(isinstance(item, str) for item in value) or all(map(_is_token_ids, value))
    ):
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"{len(value)} prompts in one request; {MAX_PROMPTS} is the most")
        return value
    raise ValueError("must be a text, a list of texts, token ids, or a list of token ids")


class CompletionRequest(GenerationBody):
    """A text completion request; several prompts make `n` choices each."""

    prompt: Annotated[str | TokenIds | list[str] | list[TokenIds], BeforeValidator(_prompt_shape)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_bos_token: bool = True


class CompletionLogprobs(BaseModel):
    """Logprobs of a choice's text; `text_offset` counts characters of the completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One choice, or in a chunk what it gained."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class Completion(BaseModel):
    """The answer, whole or one event of it: OpenAI gives both the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
