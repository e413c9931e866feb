"""The sampling params that `config.yml` gives a model."""

from typing import Any

from pydantic import Field

from core.config.section import Section, Text


class SamplingDefaults(Section):
    """Sampling params of requests that do not say; with none here either, the model's own count."""

    temperature: float | None = Field(
        None, ge=0, le=100, description="How much chance there is in the choice; 0 has none."
    )
    top_p: float | None = Field(
        None, ge=0, le=1, description="Choose among the likeliest tokens of this total probability."
    )
    top_k: int | None = Field(
        None, ge=0, description="Choose among this many of the likeliest tokens; 0 is off."
    )
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Leave out tokens less likely than this share of the likeliest one; 0 is off.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Longest answer in tokens; not set, what the context has room for."
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Lower the chance of tokens that the answer already has."
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="The same, once for each time the answer has the token."
    )
    repetition_penalty: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Divide the chance of tokens that prompt or answer already has; 1 is off.",
    )
    stop: list[Text] | None = Field(
        None, max_length=64, description="Texts that end the answer; they are not part of it."
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**64,
        description="Makes answers repeatable: the same seed gives the same answer.",
    )
    temperature_last: bool | None = Field(
        None, description="Apply the temperature after all other samplers."
    )
    typical_p: float | None = Field(
        None, ge=0, le=1, description="Choose among the most typical tokens; 1 is off."
    )
    top_n_sigma: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Choose among logits so many deviations from the highest; 0 is off.",
    )
    xtc_probability: float | None = Field(
        None, ge=0, le=1, description="How often to leave out the likeliest tokens; 0 is off."
    )
    xtc_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="XTC leaves out tokens at least this likely, but the last.",
    )
    dry_multiplier: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Strength of DRY, which penalizes repeated sequences; 0 is off.",
    )
    dry_base: float | None = Field(
        None, ge=1, le=100, description="How fast DRY's penalty grows with the repeated sequence."
    )
    dry_allowed_length: int | None = Field(
        None, ge=0, description="Longest repeated sequence that DRY lets pass, in tokens."
    )
    dry_penalty_last_n: int | None = Field(
        None, ge=-1, description="Tokens that DRY looks back at; -1 is all of them."
    )
    mirostat: int | None = Field(
        None, ge=0, le=2, description="Version of mirostat, which steers surprise; 0 is off."
    )
    mirostat_tau: float | None = Field(
        None, ge=0, le=100, description="Surprise that mirostat aims at, in bits a token."
    )
    mirostat_eta: float | None = Field(
        None, ge=0, le=1, description="How fast mirostat corrects itself."
    )
    dynatemp_range: float | None = Field(
        None, ge=0, le=100, description="How far the temperature follows the entropy; 0 is off."
    )
    dynatemp_exponent: float | None = Field(
        None, ge=0, le=100, description="Power of the entropy that the temperature follows."
    )
    penalty_last_n: int | None = Field(
        None, ge=-1, description="Tokens that the penalties look back at; -1 is all of them."
    )

    smoothing_factor: float | None = Field(
        None, ge=0, le=1e6, description="Strength of quadratic smoothing of the logits; 0 is off."
    )
    top_a: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Leave out tokens less likely than this times the best's square; 0 is off.",
    )
    tfs: float | None = Field(
        None, ge=0, le=1, description="Tail-free sampling: how much is no tail; 1 is off."
    )
    skew: float | None = Field(
        None, ge=-20, le=20, description="Draw likelier (below 0) or rarer tokens; 0 is off."
    )
    banned_strings: list[Text] | None = Field(
        None, max_length=256, description="Texts that answers never have, whatever their case."
    )
    token_healing: bool | None = Field(
        None, description="Choose the last token of prompts again, longer if that is likelier."
    )

    def params(self) -> dict[str, Any]:
        """The fields of `SamplingParams` that are set here."""
        params = self.model_dump(exclude_none=True)
        return {k: tuple(v) if isinstance(v, list) else v for k, v in params.items()}
