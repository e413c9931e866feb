"""How to choose tokens, as requests say it: names and values of OpenAI, vLLM and TabbyAPI.

Names have the aliases that SillyTavern and TabbyAPI users send.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from core.chat.schemas.field_types import (
    aliased,
    json_list,
    minus_one_if_negative,
    none_if_minus_one,
    none_if_zero,
    one_as_list,
    one_if_zero,
    token_bias,
    token_list,
    two_if_true,
    zero_if_minus_one,
)
from core.contract.errors import InvalidRequestError
from core.contract.sampling_params import SamplingParams

TokenList = Annotated[list[int] | None, BeforeValidator(token_list)]

MAX_TOKENS = (
    "max_completion_tokens",
    "max_tokens",
    "max_new_tokens",
    "max_length",
    "n_predict",
    "num_predict",
)
"""What clients call the limit of a completion."""


class SamplingBody(BaseModel):
    """The sampling fields of a request; None where it leaves them to the defaults."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, populate_by_name=True)

    max_tokens: Annotated[
        Annotated[int, Field(ge=1)] | None, BeforeValidator(none_if_minus_one)
    ] = aliased(*MAX_TOKENS)
    min_tokens: Annotated[int, Field(ge=0)] | None = aliased("min_tokens", "min_length")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0), BeforeValidator(zero_if_minus_one)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = aliased(
        "repetition_penalty", "rep_pen", "repeat_penalty"
    )
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(token_bias)] = None
    seed: Annotated[
        Annotated[int, Field(ge=-(2**63), lt=2**64)] | None, BeforeValidator(none_if_minus_one)
    ] = aliased("seed", "sampler_seed")
    stop: Annotated[
        Annotated[
            list[Annotated[str, Field(max_length=1000)]], Field(max_length=64, fail_fast=True)
        ]
        | None,
        BeforeValidator(one_as_list),
    ] = aliased("stop", "stop_sequence", "stopping_strings")
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = aliased("ignore_eos", "ban_eos_token")
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: TokenList = aliased("allowed_token_ids", "allowed_tokens")
    banned_tokens: TokenList = aliased("banned_tokens", "custom_token_bans")
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    temperature_last: bool | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = aliased("typical_p", "typical")
    top_n_sigma: Annotated[
        Annotated[float, Field(ge=0, le=100)] | None, BeforeValidator(zero_if_minus_one)
    ] = aliased("top_n_sigma", "nsigma")
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[
        Annotated[float, Field(ge=1, le=100)] | None, BeforeValidator(none_if_zero)
    ] = None
    dry_allowed_length: Annotated[int, Field(ge=0)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1)] | None = aliased(
        "dry_penalty_last_n", "dry_range"
    )
    dry_sequence_breakers: Annotated[
        Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=32, fail_fast=True)]
        | None,
        BeforeValidator(json_list),
    ] = None
    mirostat: Annotated[int, Field(ge=0, le=2), BeforeValidator(two_if_true)] | None = aliased(
        "mirostat", "mirostat_mode"
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
        Annotated[float, Field(ge=-1, le=1), BeforeValidator(minus_one_if_negative)] | None
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

    smoothing_factor: Annotated[float, Field(ge=0, le=1e6)] | None = None
    top_a: Annotated[float, Field(ge=0, le=100)] | None = None
    tfs: Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(one_if_zero)] = (
        aliased("tfs", "tfs_z")
    )
    skew: Annotated[float, Field(ge=-20, le=20)] | None = None
    banned_strings: Annotated[
        Annotated[
            list[Annotated[str, Field(max_length=1000)]], Field(max_length=256, fail_fast=True)
        ]
        | None,
        BeforeValidator(one_as_list),
    ] = None
    token_healing: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data

    @model_validator(mode="after")
    def _every_limit_could_be_one(self) -> Self:
        """Also under the names that do not count, as another one was sent, too."""
        for name in MAX_TOKENS:
            value = (self.model_extra or {}).get(name)
            if isinstance(value, int) and value < -1:
                raise InvalidRequestError(f"{name}: should be more than 0, or -1", param=name)
        return self

    def sampling_fields(self) -> dict[str, Any]:
        """The `SamplingParams` fields this request sets, without those left to the defaults."""
        chosen = {
            name: tuple(value) if isinstance(value, list) else value
            for name in _SAMPLING_FIELDS
            if (value := getattr(self, name)) is not None
        }
        for texts in ("stop", "banned_strings"):
            if texts in chosen:
                chosen[texts] = tuple(text for text in chosen[texts] if text)
        if self.banned_tokens:
            chosen["logit_bias"] = {
                **(self.logit_bias or {}),
                **dict.fromkeys(self.banned_tokens, -math.inf),
            }
        if self.allowed_token_ids and set(self.allowed_token_ids) <= set(self.banned_tokens or ()):
            raise InvalidRequestError(
                "every token of allowed_token_ids is banned", param="allowed_token_ids"
            )
        chosen |= self._dynamic_temperature()
        for switch, (off, details) in _SWITCHES.items():
            if chosen.get(switch) == off:
                chosen = {name: value for name, value in chosen.items() if name not in details}
        if chosen.items() >= _NO_PENALTIES.items():
            chosen.pop("penalty_last_n", None)
        return chosen

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


def check_token_ids(body: SamplingBody, vocab_size: int) -> None:
    """`InvalidRequestError` for a token id that a model of this size does not have."""
    for field in ("logit_bias", "banned_tokens", "allowed_token_ids", "stop_token_ids"):
        for token_id in getattr(body, field) or ():
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{field} has the token id {token_id}; this model's go from 0 to "
                    f"{vocab_size - 1}",
                    param=field,
                )


# What these come to depends on more than one field.
_NOT_FIELDS = {"logprobs", "reasoning_budget", "constraint"}
_SAMPLING_FIELDS = tuple(
    field.name for field in fields(SamplingParams) if field.name not in _NOT_FIELDS
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
