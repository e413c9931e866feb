"""`options` of a model of the hf backend."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Pooling = Literal["mean", "cls", "last", "rank"]
Matryoshka = bool | Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
Device = Annotated[str, StringConstraints(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]


class HFOptions(BaseModel):
    """Options of one model."""

    model_config = ConfigDict(extra="forbid")

    device: Device = Field(
        default="auto", description="auto (the GPU if there is one), cpu, cuda, cuda:N or mps."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number format; auto: the checkpoint's on a GPU, the fastest on a CPU.",
    )
    device_map: Literal["auto"] | dict[str, int | str] | None = Field(
        default=None,
        description="Spread the model over devices: auto, or a mapping of module names.",
    )
    max_memory: dict[int | Literal["cpu"], Annotated[float, Field(gt=0)]] | None = Field(
        default=None,
        description="With device_map: auto, GiB of weights per GPU and cpu, such as {0: 20}.",
    )
    context_length: int | None = Field(
        default=None,
        gt=0,
        description="Maximum tokens of prompt and answer together; default: the model's.",
    )
    max_batch_size: int = Field(
        default=16,
        gt=0,
        description="Maximum choices decoded, or texts computed, together.",
    )
    batching: Literal["auto", "packed", "padded", "single"] = Field(
        default="auto",
        description="How requests share a forward pass; auto: packed if the logits agree.",
    )
    cache_tokens: int | None = Field(
        default=None,
        gt=0,
        description="KV cache size in tokens; default: half of the free memory.",
    )
    batch_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Maximum prompt tokens per pass; default: 256 on a CPU, 2048 on a GPU.",
    )
    prefill_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Maximum prompt tokens per pass while streams are running; default: 256.",
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
    media_cache_mb: int = Field(
        default=256,
        ge=0,
        description="Memory for encoded pictures, sounds and videos, which chats send again.",
    )
    prompt_lookup: int = Field(
        default=0, ge=0, le=64, description="Prompt-lookup draft tokens per step; 0: off."
    )
    draft_model: str | None = Field(
        default=None,
        description="Folder of a draft model, for speculative decoding; off if unset.",
    )
    draft_tokens: int = Field(default=4, gt=0, le=16, description="Tokens drafted per step.")
    quantize: Literal["int8"] | None = Field(
        default=None,
        description="int8: store weights in 8 bits on the CPU, faster and a little less exact.",
    )
    prepack: bool = Field(
        default=True, description="Store weights the way the CPU multiplies them fastest."
    )
    fuse_projections: bool = Field(
        default=True,
        description="Compute projections of the same input as one, in the usual architectures.",
    )
    adapters: dict[str, str] = Field(
        default={}, description="LoRA adapters: PEFT folders by the model name clients use."
    )
    threads: int | None = Field(
        default=None, gt=0, description="CPU threads of torch; default: torch's choice."
    )
    trust_remote_code: bool = Field(
        default=False, description="Run Python code shipped with the model."
    )
    attn_implementation: str | None = Field(
        default=None,
        description="transformers attention (sdpa, eager, ...); default: its own choice.",
    )
    embeddings: bool | None = Field(
        default=None,
        description="Serve embeddings or scores instead of text; default: what the folder is for.",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="Pooling of tokens to one embedding, or a score (rank); default: the model's.",
    )
    matryoshka: Matryoshka | None = Field(
        default=None,
        description="Sizes that embeddings may be cut to, or true for any; default: the model's.",
    )
    value_head: str | None = Field(
        default=None,
        description="Value head of a reward model: its file, or folder (with its LoRA).",
    )

    @model_validator(mode="after")
    def _one_placement(self) -> Self:
        if self.device_map is not None and self.device != "auto":
            raise ValueError("give device or device_map, not both")
        if self.max_memory and self.device_map != "auto":
            raise ValueError("max_memory needs device_map: auto")
        return self

    @model_validator(mode="after")
    def _one_drafter(self) -> Self:
        if self.draft_model and self.prompt_lookup:
            raise ValueError("give draft_model or prompt_lookup, not both")
        return self

    @model_validator(mode="after")
    def _pooling_is_for_embeddings(self) -> Self:
        for name in ("pooling", "value_head", "matryoshka"):
            if getattr(self, name) and self.embeddings is False:
                raise ValueError(f"{name} has no effect with embeddings: false; remove one of them")
        if self.pooling and self.value_head:
            raise ValueError("give pooling or value_head, not both")
        return self

    @classmethod
    def of(cls, options: Any) -> Self:
        """The validated options, from options, a mapping or None."""
        return options if isinstance(options, cls) else cls.model_validate(options or {})
