"""The `ModelInfo` of a model, read from its folder."""

from typing import Any

from backends.checkpoint.defaults import sampling_defaults
from backends.checkpoint.folder import Checkpoint
from backends.checkpoint.tokenizer import Tokenizer
from backends.hf.options import HFOptions
from enginebay import ModelInfo, NumpyRunner

_CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")
_CONTEXT_OF_UNLIMITED = 4096


def model_info(
    checkpoint: Checkpoint, options: HFOptions, text_config: Any, tokenizer: Tokenizer
) -> ModelInfo:
    """`text_config` is transformers' configuration of the language part of the model."""
    return ModelInfo(
        context_length=context_length(checkpoint, options, text_config),
        vocab_size=text_config.vocab_size,
        longest_token=tokenizer.longest_token,
        chat_template=tokenizer.chat_template,
        chat_templates=tokenizer.chat_templates,
        special_tokens=tokenizer.special_tokens,
        defaults=sampling_defaults(checkpoint.generation_config),
        adapters=tuple(options.adapters),
        unsupported=NumpyRunner.unsupported,
    )


def context_length(checkpoint: Checkpoint, options: HFOptions, text_config: Any) -> int:
    """The model's, or the shorter one set in the options.

    A model without positions (alibi, recurrent) has no limit: any length works, by default 4096.
    """
    lengths = (getattr(text_config, name, None) for name in _CONTEXT_NAMES)
    longest = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    wanted = options.context_length
    if longest is not None and wanted is not None and wanted > longest:
        raise checkpoint.unavailable(
            f"context_length {wanted} exceeds the {longest} tokens the model was trained for"
        )
    return wanted or longest or _CONTEXT_OF_UNLIMITED
