"""The sampling params that `config.yml` gives a model."""

from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from core.config.section import Section, Text

Value = TypeVar("Value")
Entry = dict[str, Any]
"""`{override, force, additive}`, as TabbyAPI has it; the override is of the param's type."""


class _OrEntry:
    """Lets an `Entry` stand in the place of a value."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        value = handler.generate_schema(get_args(source)[0])
        switch = core_schema.typed_dict_field(core_schema.bool_schema(), required=False)
        entry = core_schema.typed_dict_schema(
            {
                "override": core_schema.typed_dict_field(value),
                "force": switch,
                "additive": switch,
            },
            extra_behavior="forbid",
        )
        either = core_schema.tagged_union_schema(
            {
                "value": value,
                "entry": core_schema.no_info_after_validator_function(_checked, entry),
            },
            discriminator=lambda given: "entry" if isinstance(given, dict) else "value",
        )
        return core_schema.nullable_schema(either)


def _checked(entry: Entry) -> Entry:
    if entry.get("additive") and not isinstance(entry["override"], list):
        raise ValueError("additive is for lists; it has no meaning here")
    return entry


Param = Annotated[Value | Entry | None, _OrEntry()]


class SamplingDefaults(Section):
    """Sampling params of requests that do not say; with none here either, the model's own count."""

    temperature: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None, description="How much chance there is in the choice; 0 has none."
    )
    top_p: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None, description="Choose among the likeliest tokens of this total probability."
    )
    top_k: Param[Annotated[int, Field(ge=0)]] = Field(
        None, description="Choose among this many of the likeliest tokens; 0 is off."
    )
    min_p: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None,
        description="Leave out tokens less likely than this share of the likeliest one; 0 is off.",
    )
    max_tokens: Param[Annotated[int, Field(ge=1)]] = Field(
        None, description="Longest answer in tokens; not set, what the context has room for."
    )
    presence_penalty: Param[Annotated[float, Field(ge=-2, le=2)]] = Field(
        None, description="Lower the chance of tokens that the answer already has."
    )
    frequency_penalty: Param[Annotated[float, Field(ge=-2, le=2)]] = Field(
        None, description="The same, once for each time the answer has the token."
    )
    repetition_penalty: Param[Annotated[float, Field(gt=0, le=10)]] = Field(
        None, description="Divide the chance of tokens that prompt or answer already has; 1 is off."
    )
    stop: Param[Annotated[list[Text], Field(max_length=64)]] = Field(
        None, description="Texts that end the answer; they are not part of it."
    )
    seed: Param[Annotated[int, Field(ge=0, lt=2**64)]] = Field(
        None, description="Makes answers repeatable: the same seed gives the same answer."
    )
    temperature_last: Param[bool] = Field(
        None, description="Apply the temperature after all other samplers."
    )
    typical_p: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None, description="Choose among the most typical tokens; 1 is off."
    )
    top_n_sigma: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None, description="Choose among logits so many deviations from the highest; 0 is off."
    )
    xtc_probability: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None, description="How often to leave out the likeliest tokens; 0 is off."
    )
    xtc_threshold: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None, description="XTC leaves out tokens at least this likely, but the last."
    )
    dry_multiplier: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None, description="Strength of DRY, which penalizes repeated sequences; 0 is off."
    )
    dry_base: Param[Annotated[float, Field(ge=1, le=100)]] = Field(
        None, description="How fast DRY's penalty grows with the repeated sequence."
    )
    dry_allowed_length: Param[Annotated[int, Field(ge=0)]] = Field(
        None, description="Longest repeated sequence that DRY lets pass, in tokens."
    )
    dry_penalty_last_n: Param[Annotated[int, Field(ge=-1)]] = Field(
        None, description="Tokens that DRY looks back at; -1 is all of them."
    )
    mirostat: Param[Annotated[int, Field(ge=0, le=2)]] = Field(
        None, description="Version of mirostat, which steers surprise; 0 is off."
    )
    mirostat_tau: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None, description="Surprise that mirostat aims at, in bits a token."
    )
    mirostat_eta: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None, description="How fast mirostat corrects itself."
    )
    dynatemp_range: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None, description="How far the temperature follows the entropy; 0 is off."
    )
    dynatemp_exponent: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None, description="Power of the entropy that the temperature follows."
    )
    penalty_last_n: Param[Annotated[int, Field(ge=-1)]] = Field(
        None, description="Tokens that the penalties look back at; -1 is all of them."
    )
    smoothing_factor: Param[Annotated[float, Field(ge=0, le=1000000.0)]] = Field(
        None, description="Strength of quadratic smoothing of the logits; 0 is off."
    )
    top_a: Param[Annotated[float, Field(ge=0, le=100)]] = Field(
        None,
        description="Leave out tokens less likely than this times the best's square; 0 is off.",
    )
    tfs: Param[Annotated[float, Field(ge=0, le=1)]] = Field(
        None, description="Tail-free sampling: how much is no tail; 1 is off."
    )
    skew: Param[Annotated[float, Field(ge=-20, le=20)]] = Field(
        None, description="Draw likelier (below 0) or rarer tokens; 0 is off."
    )
    banned_strings: Param[Annotated[list[Text], Field(max_length=256)]] = Field(
        None, description="Texts that answers never have, whatever their case."
    )
    token_healing: Param[bool] = Field(
        None, description="Choose the last token of prompts again, longer if that is likelier."
    )

    def params(self) -> dict[str, Any]:
        """The fields of `SamplingParams` that requests have which do not say."""
        own = self.model_dump(exclude_none=True, exclude=set(self.overrides()))
        params = {k: v["override"] if isinstance(v, dict) else v for k, v in own.items()}
        return {k: tuple(v) if isinstance(v, list) else v for k, v in params.items()}

    def overrides(self) -> dict[str, Entry]:
        """What counts whatever requests say (`force`), or beside it (`additive`)."""
        entries = {name: entry for name, entry in self if isinstance(entry, dict)}
        return {k: v for k, v in entries.items() if v.get("force") or v.get("additive")}
