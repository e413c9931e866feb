"""Bodies of `/v1/completions`: https://platform.openai.com/docs/api-reference/completions."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from typing_extensions import TypedDict  # pydantic knows only this one before Python 3.12

from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.chat.schemas.prompt_fields import Prompts, prompts_shape
from enginebay.chat.schemas.usage_bodies import PromptLogprobs, WireAnswer
from enginebay.config.field_types import aliased, none_if_minus_one
from enginebay.config.sampling_fields import MAX_TOKENS
from enginebay.contract.types import FinishReason

MAX_PROMPTS = 256


class CompletionRequest(GenerationBody):
    """A text completion request; several prompts make `n` choices each.

    `best_of`: how many are generated per prompt; the `n` with the highest mean logprob are
    returned.
    `suffix`: what follows the completion, for models that fill in the middle.
    `memory`: what is in front of each prompt, and stays when that is truncated.
    """

    prompt: Annotated[Prompts, BeforeValidator(prompts_shape(MAX_PROMPTS))]
    suffix: str | None = None
    memory: str | None = None
    max_tokens: Annotated[
        Annotated[int, Field(ge=0)] | None, BeforeValidator(none_if_minus_one)
    ] = aliased(
        *MAX_TOKENS,
        description="Maximum tokens to generate; 0, with `echo`, returns only the prompt.",
    )
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = aliased("logprobs", "n_probs")
    add_bos_token: bool = Field(
        default=True, validation_alias=AliasChoices("add_bos_token", "add_special_tokens")
    )

    @model_validator(mode="before")
    @classmethod
    def _no_n_probs(cls, data: Any) -> Any:
        """In llama.cpp, whose name that is, 0 asks for no logprobs."""
        if isinstance(data, dict) and data.get("n_probs") == 0:
            return {name: value for name, value in data.items() if name != "n_probs"}
        return data


class CompletionLogprobs(TypedDict):  # made for every token, as those of chats
    """Logprobs of a choice's text; `text_offset` counts its characters.

    The first token of an echoed prompt has none.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One choice, or its delta in a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Completion(WireAnswer):
    """The non-streaming response or one stream event: OpenAI gives both the same shape."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
