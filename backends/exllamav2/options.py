"""What `options` may say about a model of the exllamav2 backend."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

CacheType = Literal["f16", "q8", "q6", "q4"]
PAGE_TOKENS = 256
"""Tokens of a page of the cache: flash-attention's, and therefore exllamav2's."""

# The generator runs at most 8 tokens of a choice in one pass: the one it has, and guesses.
_MAX_GUESSED = 7


class AdapterOptions(BaseModel):
    """A LoRA adapter in a PEFT folder."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="PEFT folder; a relative path starts at the config's folder.")
    scale: float = Field(default=1.0, description="Strength; 0 has no effect.")


class ExLlamaV2Options(BaseModel):
    """Options of one model."""

    model_config = ConfigDict(extra="forbid")

    context_length: int | None = Field(
        default=None, gt=0, description="Tokens of prompt and answer together; none: the model's."
    )
    max_batch_size: int = Field(
        default=16, gt=0, le=256, description="Choices decoded together; a request takes one each."
    )
    cache_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Tokens that the KV cache holds for all requests; none: chosen to fit the GPU.",
    )
    cache_type: CacheType = Field(default="f16", description="Number format of keys and values.")
    prefill_tokens: int = Field(
        default=2048,
        ge=PAGE_TOKENS,
        multiple_of=PAGE_TOKENS,
        description="Prompt tokens of a pass at most; running streams wait for each pass.",
    )
    paged: bool = Field(
        default=True, description="Batch requests in a paged cache; false: one after another."
    )
    flash_attention: Literal["auto", "on", "off"] = Field(
        default="auto", description="Use flash-attn: auto (if it is installed), on, off."
    )
    gpu_split: list[Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="GiB of weights for each GPU, such as [20, 24]; none: as fits."
    )
    autosplit_reserve: list[Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="MiB to leave free on each GPU when it is split as fits."
    )
    tensor_parallel: bool = Field(
        default=False, description="Compute every layer on all GPUs together; EXL2 only."
    )
    rope_freq_base: float | None = Field(
        default=None, gt=0, description="RoPE base frequency; none: the model's."
    )
    rope_scale: float | None = Field(
        default=None, gt=0, description="Linear RoPE scaling, 2 doubles the context; none: own."
    )
    rope_alpha: float | None = Field(
        default=None, ge=1, description="NTK RoPE scaling, 2.6 about doubles the context; none: 1."
    )
    yarn_factor: float | None = Field(
        default=None, gt=1, description="YaRN scaling, 4 is four times the context; none: own."
    )
    yarn_orig_ctx: int | None = Field(
        default=None, gt=0, description="Context the model was trained with, for YaRN; none: own."
    )
    experts_per_token: int | None = Field(
        default=None, gt=0, description="Experts asked for each token; none: the model's."
    )
    adapters: dict[str, AdapterOptions | str] = Field(
        default={}, description="LoRA adapters by the name clients ask for: PEFT folder or map."
    )
    prompt_lookup: int = Field(
        default=0, ge=0, le=_MAX_GUESSED, description="Tokens to guess from the text; 0: off."
    )
    draft_model: str | None = Field(
        default=None, description="Folder of a small model that guesses tokens; none: off."
    )
    draft_tokens: int = Field(
        default=4, gt=0, le=_MAX_GUESSED, description="Tokens the draft model guesses each step."
    )
    draft_cache_type: CacheType = Field(
        default="f16", description="Number format of the draft model's keys and values."
    )
    draft_rope_alpha: float | None = Field(
        default=None, ge=1, description="NTK RoPE scaling of the draft model; none: 1."
    )
    build_extension: bool = Field(
        default=False, description="Compile exllamav2's CUDA extension if it is missing: minutes."
    )

    @model_validator(mode="after")
    def _one_drafter(self) -> Self:
        if self.draft_model and self.prompt_lookup:
            raise ValueError("give draft_model or prompt_lookup, not both")
        return self

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.cache_tokens and self.context_length and self.cache_tokens < self.context_length:
            raise ValueError("cache_tokens must be at least context_length")
        if self.autosplit_reserve is not None and self.gpu_split is not None:
            raise ValueError("give gpu_split or autosplit_reserve, not both")
        if self.gpu_split is not None and not any(self.gpu_split):
            raise ValueError("gpu_split needs a GPU with room, such as [20, 24]")
        return self

    @model_validator(mode="after")
    def _one_rope_scaling(self) -> Self:
        given = [
            name for name in ("rope_scale", "rope_alpha", "yarn_factor") if getattr(self, name)
        ]
        if len(given) > 1:
            raise ValueError(f"give {given[0]} or {given[1]}, not both")
        if self.yarn_orig_ctx and not self.yarn_factor:
            raise ValueError("yarn_orig_ctx is for yarn_factor, which is not given")
        return self

    @property
    def guessed_tokens(self) -> int:
        """Tokens a choice may have guessed for it each step."""
        return self.draft_tokens if self.draft_model else self.prompt_lookup

    @property
    def extends_context(self) -> bool:
        """Whether RoPE is set so that contexts may be longer than the model was trained for."""
        return bool(self.rope_freq_base or self.rope_scale or self.rope_alpha or self.yarn_factor)

    @classmethod
    def of(cls, options: Any) -> Self:
        """The validated options; a mapping, or nothing at all, is validated here."""
        return options if isinstance(options, cls) else cls.model_validate(options or {})
