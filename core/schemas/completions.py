"""Bodies of `/v1/completions`: https://platform.openai.com/docs/api-reference/completions."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from core.schemas.common import FinishReason, GenerationBody, Usage
from core.schemas.prompts import Prompts, prompts_shape

MAX_PROMPTS = 256


class CompletionRequest(GenerationBody):
    """A text completion request; several prompts make `n` choices each."""

    prompt: Annotated[Prompts, BeforeValidator(prompts_shape(MAX_PROMPTS))]
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
