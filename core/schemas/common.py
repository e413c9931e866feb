"""What the bodies of all generation routes share: sampling fields, usage, the error object.

Unknown request fields are kept aside and reported by name, never an error: clients send each
other's extensions. Sampling names have the aliases that SillyTavern and TabbyAPI users send.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from core.errors import InvalidRequestError


def _zero_is_off(value: Any) -> Any:
    return 0 if value == -1 else value


def _minus_one_is_none(value: Any) -> Any:
    return None if value == -1 else value


def _zero_is_none(value: Any) -> Any:
    return None if value == 0 else value


def _negative_is_off(value: Any) -> Any:
    return -1 if isinstance(value, int | float) and value < 0 else value


def _true_is_the_second(value: Any) -> Any:
    return 2 if value is True else value


def _json_list(value: Any) -> Any:
    """SillyTavern sends lists of texts as JSON; an empty one means not set."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text if text.startswith("[") else f"[{text}]")
        except ValueError as error:
            raise ValueError("must be a list of texts, or JSON of one") from error
    return value or None


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _token_bias(value: Any) -> Any:
    """One error for a wrong bias, however many tokens have one."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers from -100 to 100")
    for token_id, bias in value.items():
        if not str(token_id).isdecimal():
            raise ValueError(f"{token_id!r} is no token id")
        if not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token_id} is not a number from -100 to 100")
    return value


def aliased(name: str, *aliases: str) -> Any:
    """A field that is None unless sent, under any of these names; the first one sent counts."""
    return Field(default=None, validation_alias=AliasChoices(name, *aliases))


class StreamOptions(BaseModel):
    """`stream_options` of OpenAI."""

    include_usage: bool = False


class GenerationBody(BaseModel):
    """Fields that chat and text completions have in common."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, populate_by_name=True)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    user: str | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Field(max_length=1000)] | None = None

    max_tokens: Annotated[
        Annotated[int, Field(ge=1)] | None, BeforeValidator(_minus_one_is_none)
    ] = aliased("max_completion_tokens", "max_tokens", "max_new_tokens", "max_length", "n_predict")
    min_tokens: Annotated[int, Field(ge=0)] | None = aliased("min_tokens", "min_length")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0), BeforeValidator(_zero_is_off)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = aliased(
        "repetition_penalty", "rep_pen", "repeat_penalty"
    )
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_token_bias)] = None
    seed: Annotated[
        Annotated[int, Field(ge=-(2**63), lt=2**64)] | None, BeforeValidator(_minus_one_is_none)
    ] = aliased("seed", "sampler_seed")
    stop: Annotated[
        Annotated[
            list[Annotated[str, Field(max_length=1000)]], Field(max_length=64, fail_fast=True)
        ]
        | None,
        BeforeValidator(_listed),
    ] = aliased("stop", "stop_sequence", "stopping_strings")
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = aliased("ignore_eos", "ban_eos_token")

    temperature_last: bool | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = aliased("typical_p", "typical")
    top_n_sigma: Annotated[float, Field(ge=0, le=100), BeforeValidator(_zero_is_off)] | None = (
        aliased("top_n_sigma", "nsigma")
    )
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[
        Annotated[float, Field(ge=1, le=100)] | None, BeforeValidator(_zero_is_none)
    ] = None
    dry_allowed_length: Annotated[int, Field(ge=0)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1)] | None = aliased(
        "dry_penalty_last_n", "dry_range"
    )
    dry_sequence_breakers: Annotated[
        Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=32, fail_fast=True)]
        | None,
        BeforeValidator(_json_list),
    ] = None
    mirostat: Annotated[int, Field(ge=0, le=2), BeforeValidator(_true_is_the_second)] | None = (
        aliased("mirostat", "mirostat_mode")
    )
    mirostat_tau: Annotated[float, Field(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Field(ge=0, le=1)] | None = None
    dynamic_temperature: bool | None = None
    dynatemp_range: Annotated[float, Field(ge=0, le=100)] | None = None
    dynatemp_exponent: Annotated[float, Field(ge=0, le=100)] | None = aliased(
        "dynatemp_exponent", "temp_exponent"
    )
    min_temp: Annotated[float, Field(ge=0, le=100)] | None = aliased("min_temp", "dynatemp_low")
    max_temp: Annotated[float, Field(ge=0, le=100)] | None = aliased("max_temp", "dynatemp_high")
    adaptive_target: (
        Annotated[float, Field(ge=-1, le=1), BeforeValidator(_negative_is_off)] | None
    ) = None
    adaptive_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    penalty_last_n: Annotated[int, Field(ge=-1)] | None = aliased(
        "penalty_last_n",
        "penalty_range",
        "repetition_range",
        "repetition_penalty_range",
        "rep_pen_range",
        "repeat_last_n",
    )
    grammar: Annotated[str, Field(max_length=65_536)] | None = aliased("grammar", "grammar_string")

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_fields(self) -> dict[str, Any]:
        """The `SamplingParams` fields this request sets, without those left to the defaults."""
        fields = {
            name: getattr(self, name)
            for name in _SAMPLING_FIELDS
            if getattr(self, name) is not None
        }
        if "stop" in fields:
            fields["stop"] = tuple(s for s in fields["stop"] if s)
        for name in ("stop_token_ids", "dry_sequence_breakers"):
            if name in fields:
                fields[name] = tuple(fields[name])
        fields |= self._dynamic_temperature()
        for switch, (off, details) in _SWITCHES.items():
            if fields.get(switch) == off:
                fields = {name: value for name, value in fields.items() if name not in details}
        if fields.items() >= _NO_PENALTIES.items():
            fields.pop("penalty_last_n", None)
        return fields

    def _dynamic_temperature(self) -> dict[str, Any]:
        """`min_temp` and `max_temp` (1 if not sent) as TabbyAPI has them: instead of temperature.

        They count if the one is below the other, unless the request wants no chance at all.
        """
        low, high = self.min_temp, self.max_temp
        if self.dynamic_temperature is False:
            return {"dynatemp_range": 0.0}
        if (low is None and high is None) or self.temperature == 0:
            return {}
        low, high = 1.0 if low is None else low, 1.0 if high is None else high
        if low > high:
            raise InvalidRequestError("min_temp is more than max_temp", param="min_temp")
        if low == high:
            return {}
        return {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}

    def unknown_fields(self) -> list[str]:
        """Names of fields sent that this server does not know and that are not switched off."""
        extra: Mapping[str, Any] = self.model_extra or {}
        if not extra:
            return []
        known = _alias_names(type(self))
        return sorted(
            name for name, value in extra.items() if name not in known and not _is_off(value)
        )


def _is_off(value: Any) -> bool:
    """Whether a client says with this value that it does not use the setting."""
    if isinstance(value, bool | int | float):
        return value is False or (value is not True and value in (0, 1, -1))
    return value in ("", "[]", [], {})


_SAMPLING_FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "temperature_last",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "adaptive_target",
    "adaptive_decay",
    "penalty_last_n",
    "grammar",
)

# What switches a sampler off, and the settings that then say nothing, though clients send them.
_SWITCHES: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "xtc_probability": (0, ("xtc_threshold",)),
    "dry_multiplier": (
        0,
        ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    ),
    "mirostat": (0, ("mirostat_tau", "mirostat_eta")),
    "dynatemp_range": (0, ("dynatemp_exponent",)),
    "adaptive_target": (-1, ("adaptive_decay",)),
}
_NO_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


def _alias_names(body: type[BaseModel]) -> set[str]:
    names: set[str] = set()
    for field in body.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            names.update(str(choice) for choice in field.validation_alias.choices)
    return names


class PromptTokensDetails(BaseModel):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts of one request: the prompt once, the completions of all choices summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error answer."""

    error: ErrorObject


FinishReason = Literal["stop", "length", "tool_calls"]
