"""What bodies of requests that generate no text have in common.

The fields that cut texts are vLLM's (https://docs.vllm.ai/en/latest/models/pooling_models/) and
TEI's (https://huggingface.github.io/text-embeddings-inference/), under the names of both.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from enginebay.config.field_types import ModelName, NullIsUnset

MAX_INPUTS = 2048
"""Texts of one request."""


def not_too_many(value: Any) -> Any:
    """Refuse a list of too many items before each of them is looked at."""
    if isinstance(value, list) and len(value) > MAX_INPUTS:
        raise ValueError(f"{len(value)} items in one request; the maximum is {MAX_INPUTS}")
    return value


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() != {"text"}:
            raise ValueError('must be a string, or an object with only "text"')
        value = value["text"]
    if not isinstance(value, str):
        raise ValueError('must be a string, or {"text": ...}')
    if not value:
        raise ValueError("is empty")
    return value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Text = Annotated[str, BeforeValidator(_text)]
"""A text that is not empty, also as `{"text": ...}`."""

Texts = Annotated[list[Text], Field(min_length=1, fail_fast=True), BeforeValidator(not_too_many)]
"""At least one of them."""

OneOrMoreTexts = Annotated[Texts, BeforeValidator(_as_list)]
"""Also one that is not in a list."""


class PoolingBody(NullIsUnset):
    """Fields of all these requests."""

    model_config = ConfigDict(extra="allow")

    model: ModelName | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    user: str | None = None

    @property
    def unknown(self) -> list[str]:
        """Names of fields sent that this server does not know."""
        return sorted(self.model_extra or ())


class CutFields(PoolingBody):
    """What is done with texts that are too long.

    `truncate_prompt_tokens`: the most tokens of a text; what is more is cut off. -1, and
    `truncate`, are as many as the model's context has. None: texts that do not fit are an error.
    `truncation_side`: where they are cut.
    """

    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncate: bool = False
    truncation_side: Annotated[
        Literal["left", "right"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = Field("right", validation_alias=AliasChoices("truncation_side", "truncation_direction"))

    def kept_tokens(self, context_length: int) -> int | None:
        """How many tokens of a text are kept at most; None: all, or it is an error."""
        most = self.truncate_prompt_tokens
        if most is None:
            return context_length if self.truncate else None
        return context_length if most == -1 else min(most, context_length)


class ListAnswer(BaseModel):
    """What lists of results have in common."""

    object: Literal["list"] = "list"
    model: str
