"""`options` of a model of the exllamav2 backend."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

CacheType = Literal["f16", "q8", "q6", "q4"]
PAGE_TOKENS = 256
"""Tokens of a page of the cache: flash-attention's, and therefore exllamav2's."""

# The generator runs at most 8 tokens of a choice in one pass: its last one and the drafts.
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
        default=None,
        gt=0,
        description="Maximum tokens of prompt and answer together; default: the model's.",
    )
    max_batch_size: int = Field(
        default=16,
        gt=0,
        le=256,
        description="Maximum choices decoded together; each choice of a request counts.",
    )
    cache_tokens: int | None = Field(
        default=None,
        gt=0,
        description="KV cache size in tokens, for all requests; default: what fits the GPU.",
    )
    cache_type: CacheType = Field(default="f16", description="Number format of the KV cache.")
    prefill_tokens: int = Field(
        default=2048,
        ge=PAGE_TOKENS,
        multiple_of=PAGE_TOKENS,
        description="Maximum prompt tokens per pass; running streams wait for each pass.",
    )
    paged: bool = Field(
        default=True, description="Batch requests in a paged cache; false: one request at a time."
    )
    flash_attention: Literal["auto", "on", "off"] = Field(
        default="auto", description="Use flash-attn: auto (if installed), on, off."
    )
    gpu_split: list[Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="GiB of weights per GPU, such as [20, 24]; default: automatic."
    )
    autosplit_reserve: list[Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="MiB to leave free on each GPU when splitting automatically."
    )
    tensor_parallel: bool = Field(
        default=False, description="Tensor parallelism: split each layer over all GPUs; EXL2 only."
    )
    rope_freq_base: float | None = Field(
        default=None, gt=0, description="RoPE base frequency; default: the model's."
    )
    rope_scale: float | None = Field(
        default=None,
        gt=0,
        description="Linear RoPE scaling, 2 doubles the context; default: the model's.",
    )
    rope_alpha: float | None = Field(
        default=None,
        ge=1,
        description="NTK RoPE scaling, 2.6 about doubles the context; default: 1.",
    )
    yarn_factor: float | None = Field(
        default=None,
        gt=1,
        description="YaRN scaling, 4 quadruples the context; default: the model's.",
    )
    yarn_orig_ctx: int | None = Field(
        default=None, gt=0, description="Original training context, for YaRN; default: the model's."
    )
    experts_per_token: int | None = Field(
        default=None, gt=0, description="Active experts per token; default: the model's."
    )
    adapters: dict[str, AdapterOptions | str] = Field(
        default={},
        description="LoRA adapters by the model name clients use: PEFT folder or mapping.",
    )
    vision: bool = Field(
        default=True, description="Take pictures, if the model has a supported vision tower."
    )
    media_cache_mb: int = Field(
        default=256, ge=0, description="Memory for encoded pictures, which chats send again."
    )
    prompt_lookup: int = Field(
        default=0, ge=0, le=_MAX_GUESSED, description="Prompt-lookup draft tokens per step; 0: off."
    )
    draft_model: str | None = Field(
        default=None, description="Folder of a draft model, for speculative decoding; off if unset."
    )
    draft_tokens: int = Field(
        default=4, gt=0, le=_MAX_GUESSED, description="Tokens drafted per step."
    )
    draft_cache_type: CacheType = Field(
        default="f16", description="Number format of the draft model's KV cache."
    )
    draft_rope_alpha: float | None = Field(
        default=None, ge=1, description="NTK RoPE scaling of the draft model; default: 1."
    )
    build_extension: bool = Field(
        default=False, description="Compile exllamav2's CUDA extension if missing (takes minutes)."
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
            raise ValueError("gpu_split must give some GPU memory, such as [20, 24]")
        return self

    @model_validator(mode="after")
    def _one_rope_scaling(self) -> Self:
        given = [
            name for name in ("rope_scale", "rope_alpha", "yarn_factor") if getattr(self, name)
        ]
        if len(given) > 1:
            raise ValueError(f"give {given[0]} or {given[1]}, not both")
        if self.yarn_orig_ctx and not self.yarn_factor:
            raise ValueError("yarn_orig_ctx needs yarn_factor")
        return self

    @property
    def guessed_tokens(self) -> int:
        """Draft tokens of a choice per step."""
        return self.draft_tokens if self.draft_model else self.prompt_lookup

    @property
    def extends_context(self) -> bool:
        """Whether RoPE is set so that contexts may be longer than the model was trained for."""
        return bool(self.rope_freq_base or self.rope_scale or self.rope_alpha or self.yarn_factor)

    @classmethod
    def of(cls, options: Any) -> Self:
        """The validated options, from options, a mapping or None."""
        return options if isinstance(options, cls) else cls.model_validate(options or {})


def padded(tokens: int) -> int:
    """The next whole number of pages."""
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
