"""What the bodies of the generation routes share beside sampling.

Unknown request fields are kept aside and reported by name, never an error: clients send each
other's extensions.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from enginebay.chat.schemas.constraint_fields import ConstraintBody, extra_keys
from enginebay.config.durations import Duration
from enginebay.config.field_types import ModelName, NullIsUnset, aliased, field_names
from enginebay.config.neutral_values import asks_for_nothing
from enginebay.config.sampling_fields import MAX_TOKENS, SamplingFields
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.sampling_params import RepetitionDetection


class StreamOptions(NullIsUnset):
    """`stream_options` of OpenAI, and vLLM's `continuous_usage_stats`: usage in every chunk."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool = False
    continuous_usage_stats: bool = False


Size = Annotated[int, Field(ge=0, le=4096)]


class RepetitionOptions(NullIsUnset):
    """`repetition_detection`, as vLLM has it: the same tokens so many times in a row end a choice.

    A `max_pattern_size` of 0 is off; a `min_pattern_size` of 0 is 1.
    """

    model_config = ConfigDict(extra="allow")

    max_pattern_size: Size = 0
    min_pattern_size: Size = 0
    min_count: Size = 0

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if self.max_pattern_size and self.min_count < 2:
            raise InvalidRequestError(
                "repetition_detection.min_count: should be 2 or more",
                param="repetition_detection.min_count",
            )
        if self.max_pattern_size and self.min_pattern_size > self.max_pattern_size:
            raise InvalidRequestError(
                "repetition_detection.min_pattern_size: should be at most max_pattern_size",
                param="repetition_detection.min_pattern_size",
            )
        return self

    def params(self) -> RepetitionDetection | None:
        """The same for engines; None if it is off."""
        if not self.max_pattern_size:
            return None
        return RepetitionDetection(
            max_pattern_size=self.max_pattern_size,
            min_pattern_size=max(1, self.min_pattern_size),
            min_count=self.min_count,
        )


class GenerationBody(ConstraintBody, SamplingFields):
    """Fields that chat and text completions have in common."""

    model_config = ConfigDict(extra="allow")

    model: ModelName | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    user: str | None = None
    request_id: Annotated[str, Field(max_length=128)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Field(max_length=1000)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_length: int | None = aliased("truncation_length", "num_ctx")
    repetition_detection: RepetitionOptions | None = None
    t_max_predict_ms: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    do_sample: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    timings_per_token: bool = False
    return_progress: bool = False
    keep_alive: Duration = aliased("keep_alive", "ttl")

    _sent_names: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _remember_names(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        body = validate(data)
        if isinstance(data, dict):
            body._sent_names = dict(_other_names(cls, data))
        return body

    @property
    def sent_names(self) -> Mapping[str, str]:
        """The names of fields that the client sent under other names than their first ones."""
        return self._sent_names

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

    @property
    def reports_prefill(self) -> bool:
        """Whether a stream says how far the prompt is read."""
        return self.stream and self.return_progress

    def sampling_fields(self) -> dict[str, Any]:
        """The `SamplingParams` fields that are set; `do_sample: false` is a temperature of 0."""
        chosen = super().sampling_fields()
        if self.repetition_detection and (detected := self.repetition_detection.params()):
            chosen["repetition_detection"] = detected
        if self.do_sample is not False:
            return chosen
        kept = {name: value for name, value in chosen.items() if not name.startswith("dynatemp")}
        return {**kept, "temperature": 0.0}

    def overruled_fields(self) -> list[str]:
        """Names of fields that `do_sample: false` overrules, or that turn off others sent here."""
        names = [self.sent_names.get(name, name) for name in self.empty_windows()]
        if self.do_sample is not False or not super().sampling_fields().get("temperature"):
            return names
        temperatures = ("temperature", "min_temp", "max_temp")
        return [*names, *(name for name in temperatures if getattr(self, name))]

    def unread_settings(self) -> Iterator[tuple[str, Any]]:
        """Unknown keys inside fields that are objects."""
        yield from super().unread_settings()
        yield from extra_keys("stream_options", self.stream_options)
        yield from extra_keys("repetition_detection", self.repetition_detection)

    def unknown_fields(self) -> list[str]:
        """Names of fields sent that this server does not know and that ask for something."""
        known = _alias_names(type(self))
        extra: Mapping[str, Any] = self.model_extra or {}
        sent = [*self.unread_settings(), *(item for item in extra.items() if item[0] not in known)]
        return sorted(
            name for name, value in sent if not asks_for_nothing(name.rpartition(".")[2], value)
        )


def _alias_names(body: type[BaseModel]) -> set[str]:
    return {name for item in body.model_fields.items() for name in field_names(*item)}


def _other_names(body: type[BaseModel], sent: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, field in body.model_fields.items():
        if field.validation_alias is not None:
            names = (each for each in field_names(name, field) if sent.get(each) is not None)
            if (used := next(names, name)) != name:
                yield name, used
