"""What `options` may say about a model of the hf backend."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Device = Annotated[str, StringConstraints(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]


class HFOptions(BaseModel):
    """Options of one model."""

    model_config = ConfigDict(extra="forbid")

    device: Device = Field(
        default="auto", description="auto (the GPU if there is one), cpu, cuda, cuda:N or mps."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of the weights; auto: the best the device runs."
    )
    device_map: Literal["auto"] | dict[str, int | str] | None = Field(
        default=None, description="Spread the model over devices: auto, or module names to devices."
    )
    context_length: int | None = Field(
        default=None, gt=0, description="Tokens of prompt and answer together; none: the model's."
    )
    max_batch_size: int = Field(
        default=16, gt=0, description="Choices decoded together; a request takes one a choice."
    )
    batching: Literal["auto", "packed", "padded", "single"] = Field(
        default="auto",
        description="How requests share a forward pass; auto: packed if the model's logits allow.",
    )
    cache_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Tokens whose keys and values are kept in memory; none: half of what is free.",
    )
    batch_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Prompt tokens of a pass at most; none: 256 on a CPU, 2048 on a GPU.",
    )
    prefill_tokens: int = Field(
        default=256, gt=0, description="Prompt tokens of a pass beside running streams."
    )
    prompt_lookup: int = Field(
        default=0, ge=0, le=64, description="Tokens to guess from the prompt each step; 0: off."
    )
    prepack: bool = Field(
        default=True, description="Rearrange weights for the CPU's matrix units where that pays."
    )
    adapters: dict[str, str] = Field(
        default={}, description="LoRA adapters: PEFT folders by the names that clients ask for."
    )
    threads: int | None = Field(
        default=None, gt=0, description="CPU threads of torch; none: what torch chooses."
    )
    trust_remote_code: bool = Field(
        default=False, description="Run Python code that comes with the model."
    )
    attn_implementation: str | None = Field(
        default=None, description="Attention of transformers (sdpa, eager, ...); none: its choice."
    )

    @model_validator(mode="after")
    def _one_placement(self) -> Self:
        if self.device_map is not None and self.device != "auto":
            raise ValueError("give device or device_map, not both")
        return self

    @classmethod
    def of(cls, options: Any) -> Self:
        """The validated options; a mapping, or nothing at all, is validated here."""
        return options if isinstance(options, cls) else cls.model_validate(options or {})
