"""The table of sampling fields: names, ranges, off values, and descriptions.

Request bodies inherit it; `sampling` of `config.yml` and the presets are built from it. Each field
is the `SamplingParams` field of the same name. Names and values follow OpenAI, vLLM and TabbyAPI;
aliases are what SillyTavern and TabbyAPI users send.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field

from enginebay.config.field_types import (
    NullIsUnset,
    Scalars,
    aliased,
    json_list,
    minus_one_if_negative,
    none_if_minus_one,
    none_if_zero,
    one_as_list,
    one_if_zero,
    texts_and_tokens,
    token_bias,
    token_list,
    two_if_true,
    zero_if_minus_one,
)
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.sampling_params import SamplingParams

Probability = Annotated[float, Field(ge=0, le=1)]
UpTo100 = Annotated[float, Field(ge=0, le=100)]
UpTo2 = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=0)]
LastTokens = Annotated[int, Field(ge=-1)]
TokenList = Annotated[Scalars[int] | None, BeforeValidator(token_list)]
LongText = Annotated[str, Field(max_length=1000)]
LongTexts = list[LongText]
ShortTexts = list[Annotated[str, Field(max_length=40)]]

MAX_TOKENS = (
    "max_completion_tokens",
    "max_tokens",
    "max_new_tokens",
    "max_length",
    "n_predict",
    "num_predict",
)
"""The names that clients use for the limit of a completion."""


class SamplingFields(NullIsUnset):
    """Sampling fields; None leaves a setting to the next source of defaults."""

    model_config = ConfigDict(allow_inf_nan=False, populate_by_name=True)

    temperature: UpTo100 | None = Field(None, description="Sampling temperature; 0 is greedy.")
    top_p: Probability | None = Field(
        None, description="Keep the likeliest tokens that add up to this probability; 1 is off."
    )
    top_k: Annotated[Count, BeforeValidator(zero_if_minus_one)] | None = Field(
        None, description="Keep this many of the likeliest tokens; 0 is off."
    )
    min_p: Probability | None = Field(
        None, description="Drop tokens less likely than this share of the likeliest; 0 is off."
    )
    max_tokens: Annotated[
        Annotated[int, Field(ge=1)] | None, BeforeValidator(none_if_minus_one)
    ] = aliased(
        *MAX_TOKENS,
        description="Maximum tokens to generate; if unset, the context's rest (base models: 1024).",
    )
    max_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = Field(
        None, description="End the answer this many seconds after its first token; 0 is off."
    )
    min_tokens: Count | None = aliased(
        "min_tokens",
        "min_length",
        description="Minimum tokens to generate before anything may end the answer.",
    )
    presence_penalty: UpTo2 | None = Field(
        None, description="Lower the logits of tokens already in the answer by this much."
    )
    frequency_penalty: UpTo2 | None = Field(
        None, description="Lower a token's logit by this much each time it occurs in the answer."
    )
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = aliased(
        "repetition_penalty",
        "rep_pen",
        "repeat_penalty",
        description="Penalize tokens already in the prompt or the answer; 1 is off.",
    )
    penalty_last_n: LastTokens | None = aliased(
        "penalty_last_n",
        "penalty_range",
        "repetition_range",
        "repetition_penalty_range",
        "rep_pen_range",
        "repeat_last_n",
        description="How many of the last tokens the penalties consider; -1 is all.",
    )
    stop: Annotated[
        Annotated[list[LongText | int], Field(max_length=64, fail_fast=True)] | None,
        BeforeValidator(texts_and_tokens),
    ] = aliased(
        "stop",
        "stop_sequence",
        "stopping_strings",
        description="Strings, or token ids, that end the answer; they are not part of it.",
    )
    stop_token_ids: Scalars[int] | None = Field(None, description="Token ids that end the answer.")
    include_stop_str_in_output: bool | None = Field(
        None, description="Keep the stop string or stop token at the end of the answer."
    )
    ignore_eos: bool | None = aliased(
        "ignore_eos", "ban_eos_token", description="Continue past the end-of-sequence token."
    )
    skip_special_tokens: bool | None = Field(
        None, description="Leave special tokens out of the text; the default is true."
    )
    seed: Annotated[
        Annotated[int, Field(ge=-(2**63), lt=2**64)] | None, BeforeValidator(none_if_minus_one)
    ] = aliased(
        "seed",
        "sampler_seed",
        description="Random seed: the same seed gives the same answer; -1 is unset.",
    )
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(token_bias)] = Field(
        None, description="Token ids and the bias, from -100 to 100, to add to their logits."
    )
    banned_tokens: TokenList = aliased(
        "banned_tokens", "custom_token_bans", description="Token ids that are never generated."
    )
    allowed_token_ids: TokenList = aliased(
        "allowed_token_ids", "allowed_tokens", description="Generate only these token ids."
    )
    banned_strings: Annotated[
        Annotated[LongTexts, Field(max_length=256, fail_fast=True)] | None,
        BeforeValidator(one_as_list),
    ] = aliased(
        "banned_strings",
        "bad_words",
        description="Strings that never occur in the answer, in upper or lower case.",
    )
    loop_detect_window: Annotated[int, Field(ge=0, le=16_384)] | None = Field(
        None,
        description="End the answer when this many tokens at its end repeat a pattern; 0 is off.",
    )
    token_healing: bool | None = Field(
        None, description="Generate the prompt's last token again; it may become a longer one."
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Logprobs of the prompt's tokens, with this many alternatives for each."
    )

    temperature_last: bool | None = Field(
        None, description="Apply the temperature after all other samplers."
    )
    typical_p: Probability | None = aliased(
        "typical_p",
        "typical",
        description="Locally typical sampling: probability mass to keep; 1 is off.",
    )
    top_n_sigma: Annotated[UpTo100 | None, BeforeValidator(zero_if_minus_one)] = aliased(
        "top_n_sigma",
        "nsigma",
        description="Keep logits within this many standard deviations of the highest; 0 is off.",
    )
    top_a: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="Drop tokens below this times the square of the top probability; 0: off."
    )
    tfs: Annotated[Probability | None, BeforeValidator(one_if_zero)] = aliased(
        "tfs", "tfs_z", description="Tail-free sampling: probability mass to keep; 1 is off."
    )
    smoothing_factor: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        None, description="Strength of quadratic smoothing of the logits; 0 is off."
    )
    skew: Annotated[float, Field(ge=-20, le=20)] | None = Field(
        None, description="Prefer likelier (below 0) or rarer (above 0) tokens in the draw."
    )
    xtc_probability: Probability | None = Field(
        None, description="Probability that XTC drops the likeliest tokens; 0 is off."
    )
    xtc_threshold: Probability | None = Field(
        None, description="XTC drops tokens at least this likely, except the least likely of them."
    )
    dry_multiplier: UpTo100 | None = Field(
        None, description="Strength of DRY, which penalizes repeated sequences; 0 is off."
    )
    dry_base: Annotated[
        Annotated[float, Field(ge=1, le=100)] | None, BeforeValidator(none_if_zero)
    ] = Field(None, description="Factor by which DRY's penalty grows with each repeated token.")
    dry_allowed_length: Count | None = Field(
        None, description="Longest repeated sequence, in tokens, that DRY does not penalize."
    )
    dry_penalty_last_n: LastTokens | None = aliased(
        "dry_penalty_last_n",
        "dry_range",
        description="How many of the last tokens DRY considers; -1 is all.",
    )
    dry_sequence_breakers: Annotated[
        Annotated[ShortTexts, Field(max_length=32, fail_fast=True)] | None,
        BeforeValidator(json_list),
    ] = Field(None, description="Strings that no repeated sequence of DRY extends across.")
    mirostat: Annotated[int, Field(ge=0, le=2), BeforeValidator(two_if_true)] | None = aliased(
        "mirostat", "mirostat_mode", description="Version of mirostat, 1 or 2; 0 is off."
    )
    mirostat_tau: UpTo100 | None = Field(
        None, description="Mirostat's target surprise, in bits per token."
    )
    mirostat_eta: Probability | None = Field(None, description="Mirostat's learning rate.")
    dynamic_temperature: bool | None = Field(
        None, description="Whether min_temp and max_temp apply; they do if unset."
    )
    min_temp: UpTo100 | None = aliased(
        "min_temp",
        "dynatemp_low",
        description="Lowest dynamic temperature; with max_temp, instead of temperature.",
    )
    max_temp: UpTo100 | None = aliased(
        "max_temp",
        "dynatemp_high",
        description="Highest dynamic temperature; with min_temp, instead of temperature.",
    )
    dynatemp_range: UpTo100 | None = Field(
        None, description="How far the temperature follows the entropy, up or down; 0 is off."
    )
    dynatemp_exponent: Annotated[float, Field(ge=0, le=10_000)] | None = aliased(
        "dynatemp_exponent",
        "temp_exponent",
        description="Exponent of the entropy in the dynamic temperature.",
    )
    adaptive_target: (
        Annotated[float, Field(ge=-1, le=1), BeforeValidator(minus_one_if_negative)] | None
    ) = Field(None, description="Prefer tokens near this probability; below 0 is off.")
    adaptive_decay: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="Decay of the mean probability by which adaptive_target steers."
    )

    def with_defaults(self, defaults: "SamplingFields") -> Self:
        """These fields, with unset ones taken from `defaults`.

        If a temperature is set, a temperature range is not filled in, and vice versa.
        """
        kept: set[str] = set()
        if self.temperature is not None:
            kept |= {"min_temp", "max_temp"}
        if self.min_temp is not None or self.max_temp is not None:
            kept.add("temperature")
        missing = {
            name: value
            for name, value in defaults
            if value is not None and name not in kept and getattr(self, name) is None
        }
        return self.model_copy(update=missing)

    def sampling_fields(self) -> dict[str, Any]:
        """The `SamplingParams` fields that are set; `InvalidRequestError` if two contradict."""
        chosen = {
            name: tuple(value) if isinstance(value, list) else value
            for name in _PARAMS
            if (value := getattr(self, name)) is not None
        }
        if tokens := tuple(each for each in self.stop or () if isinstance(each, int)):
            chosen["stop_token_ids"] = (*chosen.get("stop_token_ids", ()), *tokens)
        for texts in ("stop", "banned_strings"):
            if texts in chosen:
                chosen[texts] = tuple(
                    each for each in chosen[texts] if each and isinstance(each, str)
                )
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

    def empty_windows(self) -> list[str]:
        """Fields that let a penalty consider no tokens, and so turn one off that is set here."""
        chosen = self.sampling_fields()
        return [
            window
            for window, penalties in _WINDOWS.items()
            if getattr(self, window) == 0
            and any(chosen.get(name, off) != off for name, off in penalties.items())
        ]

    def _dynamic_temperature(self) -> dict[str, Any]:
        """`min_temp` and `max_temp` (1 if unset) as in TabbyAPI: instead of the temperature.

        They apply if min_temp is below max_temp, unless the temperature is 0.
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

    def check_token_ids(self, vocab_size: int) -> None:
        """`InvalidRequestError` for a token id that a model of this size does not have."""
        of_tokens = ("logit_bias", "banned_tokens", "allowed_token_ids", "stop_token_ids", "stop")
        for field in of_tokens:
            for token_id in getattr(self, field) or ():
                if isinstance(token_id, int) and not 0 <= token_id < vocab_size:
                    raise InvalidRequestError(
                        f"{field} has the token id {token_id}, but this model's are 0 to "
                        f"{vocab_size - 1}",
                        param=field,
                    )


_PARAMS = tuple(
    field.name for field in fields(SamplingParams) if field.name in SamplingFields.model_fields
)

# The value that switches a sampler off, and its settings, which then have no effect.
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
# The field that says how many tokens penalties consider, and the values that turn these off.
_WINDOWS: Mapping[str, Mapping[str, float]] = {
    "penalty_last_n": _NO_PENALTIES,
    "dry_penalty_last_n": {"dry_multiplier": 0},
}
