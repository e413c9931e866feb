"""The `ModelInfo` of a model, read from its folder."""

from typing import Any

from enginebay import ModelInfo, NumpyRunner
from enginebay_checkpoint.defaults import sampling_defaults
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.options import HFOptions
from enginebay_hf.sizing import context_length


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
