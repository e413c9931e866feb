"""The `ModelInfo` of a model, read from its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay import ModelInfo
from enginebay_checkpoint.defaults import sampling_defaults
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.tokenizer import Tokenizer

if TYPE_CHECKING:
    from enginebay_exllamav2.vision.families import Family

UNSUPPORTED = frozenset({"prompt_logprobs"})
"""The generator keeps no logits of a prompt."""

UNSUPPORTED_WITH_DRAFTS = frozenset({"banned_strings"})
"""The library keeps following a draft whose tokens it has just rolled back."""


def model_info(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    *,
    context_length: int,
    vocab_size: int,
    adapters: tuple[str, ...],
    unsupported: frozenset[str],
    sees: Family | None,
) -> ModelInfo:
    """`unsupported`: sampling params that the engine cannot honour. `sees`: None for text only."""
    return ModelInfo(
        context_length=context_length,
        vocab_size=vocab_size,
        longest_token=tokenizer.longest_token,
        chat_template=tokenizer.chat_template,
        chat_templates=tokenizer.chat_templates,
        special_tokens=tokenizer.special_tokens,
        defaults=sampling_defaults(checkpoint.generation_config),
        adapters=adapters,
        unsupported=unsupported,
        modalities=frozenset({"image"} if sees else ()),
        placeholders={"image": sees.placeholder} if sees else {},
        media_options=frozenset({"max_pixels"} if sees and sees.max_pixels else ()),
    )
