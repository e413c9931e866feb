"""`options` of a model of the llamacpp backend."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Pooling = Literal["mean", "cls", "last", "rank"]
Matryoshka = bool | Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ: what llama.cpp is compiled for."""


class AdapterOptions(BaseModel):
    """A LoRA adapter in a GGUF file."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="GGUF file; a relative path starts at the config file's folder.")
    scale: float = Field(default=1.0, description="Strength; 0 has no effect.")


class LlamaCppOptions(BaseModel):
    """Options of one model."""

    model_config = ConfigDict(extra="forbid")

    context_length: int | None = Field(
        default=None,
        gt=0,
        description="Maximum tokens of one prompt and answer together; default: the model's.",
    )
    max_batch_size: int = Field(
        default=16,
        gt=0,
        le=MAX_SEQUENCES,
        description="Maximum choices decoded together; each choice of a request counts.",
    )
    cache_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Most tokens of all sequences together; default: a few long ones, if they fit.",
    )
    kv_unified: bool | None = Field(
        default=None,
        description="Share one KV cache (true) or split it per sequence; default: automatic.",
    )
    cache_type_k: CacheType = Field(default="f16", description="Number format of cached keys.")
    cache_type_v: CacheType = Field(
        default="f16",
        description="Number format of cached values; below 16 bits needs flash attention.",
    )
    swa_full: bool = Field(
        default=True,
        description="Keep all tokens of sliding-window layers: more memory, but prefix reuse.",
    )
    offload_kv: bool = Field(default=True, description="Keep the KV cache on the GPU.")
    batch_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Maximum tokens per forward pass; default: 512, on a GPU 2048.",
    )
    ubatch_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Maximum tokens computed at once within a pass; default: 512.",
    )
    prefill_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Most prompt tokens per pass while streams run; default: 256, on a GPU 512.",
    )
    prefill_slowdown: float | None = Field(
        default=None,
        gt=1,
        description="Times slower streams may get while prompts are read; default: 4, or 50 ms.",
    )
    deterministic: bool = Field(
        default=False,
        description="Repeat answers exactly: requests with a seed use no prefix cache, no drafts.",
    )
    threads: int | None = Field(
        default=None, gt=0, description="CPU threads for decoding; default: the physical cores."
    )
    threads_batch: int | None = Field(
        default=None,
        gt=0,
        description="CPU threads for prompt processing; default: same as threads.",
    )
    numa: Literal["disabled", "distribute", "isolate", "numactl"] = Field(
        default="disabled", description="NUMA strategy; set by the first model that loads."
    )
    gpu_layers: Annotated[int, Field(ge=0)] | Literal["all", "auto"] = Field(
        default="auto",
        description="Layers on the GPU: a number, all, or auto (as many as fit beside the cache).",
    )
    cpu_moe_layers: Annotated[int, Field(ge=0)] | Literal["all"] = Field(
        default=0,
        description="Layers whose experts stay in RAM: the first N, or all; saves GPU memory.",
    )
    override_tensor: str | list[str] = Field(
        default=[],
        description="Where tensors go, as REGEX=BUFFER TYPE of llama.cpp; a list, or with commas.",
    )
    split_mode: Literal["none", "layer", "row", "tensor"] = Field(
        default="layer", description="How to split the model over several GPUs."
    )
    main_gpu: int = Field(default=0, ge=0, description="The GPU to use with split_mode none.")
    tensor_split: list[Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="Each GPU's share of the model, such as [3, 1]."
    )
    flash_attention: Literal["auto", "on", "off"] = Field(
        default="auto", description="Flash attention."
    )
    rope_scaling: Literal["none", "linear", "yarn", "longrope"] | None = Field(
        default=None, description="RoPE scaling type; default: the model's."
    )
    rope_freq_base: float | None = Field(
        default=None, gt=0, description="RoPE base frequency; default: the model's."
    )
    rope_freq_scale: float | None = Field(
        default=None,
        gt=0,
        description="RoPE frequency scale, 0.5 doubles the context; default: the model's.",
    )
    yarn_ext_factor: float | None = Field(
        default=None, description="YaRN extrapolation mix; default: the model's."
    )
    yarn_attn_factor: float | None = Field(
        default=None, description="YaRN attention magnitude; default: the model's."
    )
    yarn_beta_fast: float | None = Field(
        default=None, description="YaRN low correction dimension; default: the model's."
    )
    yarn_beta_slow: float | None = Field(
        default=None, description="YaRN high correction dimension; default: the model's."
    )
    yarn_orig_ctx: int | None = Field(
        default=None, gt=0, description="Original training context, for YaRN; default: the model's."
    )
    mmap: bool = Field(default=True, description="Memory-map the file instead of reading it.")
    mlock: bool = Field(
        default=False, description="Lock the model in RAM so that it is never swapped out."
    )
    repack: bool | None = Field(
        default=None,
        description="Repack weights for faster CPU kernels; default: unless AMX may crash.",
    )
    check_tensors: bool = Field(
        default=False, description="Check the weights for invalid numbers while loading."
    )
    override_kv: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="GGUF metadata that overrides the file's."
    )
    adapters: dict[str, AdapterOptions | str] = Field(
        default_factory=dict,
        description="LoRA adapters by the model name clients use: path or mapping.",
    )
    mmproj: str | Literal[False] | None = Field(
        default=None,
        description="GGUF file for pictures and sound, or false; default: the one beside it.",
    )
    media_cache_mb: int = Field(
        default=256, ge=0, description="Memory for encoded pictures and sounds, in MB."
    )
    prompt_lookup: int = Field(
        default=0, ge=0, le=64, description="Prompt-lookup draft tokens per step; 0: off."
    )
    draft_model: str | None = Field(
        default=None,
        description="GGUF file of a draft model, for speculative decoding; off if unset.",
    )
    draft_tokens: int = Field(default=4, gt=0, le=16, description="Tokens drafted per step.")
    embeddings: bool | None = Field(
        default=None,
        description="Serve embeddings instead of text; default: if it is an embedding model.",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="Pooling of tokens to one embedding, or a score (rank); default: the model's.",
    )
    matryoshka: Matryoshka = Field(
        default=False,
        description="Sizes that embeddings may be cut to, or true for any.",
    )

    @model_validator(mode="after")
    def _one_drafter(self) -> Self:
        if self.draft_model and self.prompt_lookup:
            raise ValueError("give draft_model or prompt_lookup, not both")
        return self

    @model_validator(mode="after")
    def _pooling_is_for_embeddings(self) -> Self:
        for name in ("pooling", "matryoshka"):
            if getattr(self, name) and self.embeddings is False:
                raise ValueError(f"{name} has no effect with embeddings: false; remove one of them")
        return self

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.cache_tokens and self.context_length and self.cache_tokens < self.context_length:
            raise ValueError("cache_tokens must be at least context_length")
        return self

    @model_validator(mode="after")
    def _overrides_are_whole(self) -> Self:
        for pattern, target in self.tensor_overrides:
            if not pattern or not target:
                raise ValueError(
                    "override_tensor must be REGEX=BUFFER TYPE, such as ffn_.*_exps=CPU"
                )
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"override_tensor: {pattern!r} is no regular expression: {error}"
                ) from error
        return self

    @property
    def tensor_overrides(self) -> list[tuple[str, str]]:
        """`override_tensor` as pairs of a regular expression and a buffer type."""
        given = self.override_tensor
        entries = given.split(",") if isinstance(given, str) else given
        split = [entry.rpartition("=") for entry in entries if entry.strip()]
        return [(pattern.strip(), target.strip()) for pattern, _, target in split]

    @property
    def shorter_embeddings(self) -> tuple[int, ...] | None:
        """As `ModelInfo.shorter_embeddings`."""
        sizes = () if isinstance(self.matryoshka, bool) else tuple(self.matryoshka)
        return sizes if self.matryoshka else None

    @property
    def guessed_tokens(self) -> int:
        """Draft tokens of a choice per step."""
        return self.draft_tokens if self.draft_model else self.prompt_lookup

    @property
    def extends_context(self) -> bool:
        """Whether RoPE is set so that contexts may be longer than the model was trained for."""
        return any((self.rope_scaling, self.rope_freq_base, self.rope_freq_scale))

    @classmethod
    def of(cls, options: Any) -> Self:
        """The validated options, from options, a mapping or None."""
        return options if isinstance(options, cls) else cls.model_validate(options or {})
