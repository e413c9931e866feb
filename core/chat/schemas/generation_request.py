"""What the bodies of the generation routes share beside sampling.

Unknown request fields are kept aside and reported by name, never an error: clients send each
other's extensions.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.chat.schemas.constraint_fields import ConstraintBody
from core.config.field_types import field_names
from core.config.sampling_fields import MAX_TOKENS, SamplingFields
from core.contract.errors import InvalidRequestError


class StreamOptions(BaseModel):
    """`stream_options` of OpenAI, and vLLM's `continuous_usage_stats`: usage in every chunk."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(ConstraintBody, SamplingFields):
    """Fields that chat and text completions have in common."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    user: str | None = None
    request_id: Annotated[str, Field(max_length=128)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Field(max_length=1000)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _every_limit_could_be_one(self) -> Self:
        """Also checks aliases that are ignored because another one was sent."""
        for name in MAX_TOKENS:
            value = (self.model_extra or {}).get(name)
            if isinstance(value, int) and value < -1:
                raise InvalidRequestError(f"{name}: should be more than 0, or -1", param=name)
        return self

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        options = self.stream_options
        if (
            options
            and not self.stream
            and (options.include_usage or options.continuous_usage_stats)
        ):
            raise InvalidRequestError(
                "stream_options needs stream: true; a non-streaming response always has its usage",
                param="stream_options",
            )
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream has usage."""
        return self.include_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )

    def unknown_fields(self) -> list[str]:
        """Names of fields sent that this server does not know and that are not switched off."""
        nested = [name for name, value in self.unread_settings() if not _is_off(name, value)]
        extra: Mapping[str, Any] = self.model_extra or {}
        if not extra:
            return nested
        known = _alias_names(type(self)) | _NOTES
        unknown = [
            name for name, value in extra.items() if name not in known and not _is_off(name, value)
        ]
        return sorted([*nested, *unknown])


# Fields that clients send for their own use; nothing to honour.
_NOTES = {"api_server", "api_type", "legacy_api", "num_ctx", "truncation_length"}

_OFF: Mapping[str, tuple[Any, ...]] = {"service_tier": ("auto", "default")}


def _is_off(name: str, value: Any) -> bool:
    """Whether this value means that the client does not use the setting."""
    if value in _OFF.get(name, ()):
        return True
    if isinstance(value, bool | int | float):
        return value is False or (value is not True and value in (0, 1, -1))
    return value in ("", "[]", [], {})


def _alias_names(body: type[BaseModel]) -> set[str]:
    return {name for item in body.model_fields.items() for name in field_names(*item)}
