"""What the endpoint layer must know of a model, read from its folder."""

from collections.abc import Iterable
from typing import Any

from backends.hf.checkpoint import Checkpoint
from backends.hf.options import HFOptions
from backends.hf.tokenizer import Tokenizer
from enginebay import ModelInfo

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")
_CONTEXT_OF_UNLIMITED = 4096
_UNSUPPORTED = frozenset(
    {
        "temperature_last",
        "typical_p",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "dynatemp_range",
        "dynatemp_exponent",
        "adaptive_target",
        "adaptive_decay",
        "penalty_last_n",
    }
)


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
        unsupported=_UNSUPPORTED,
    )


def context_length(checkpoint: Checkpoint, options: HFOptions, text_config: Any) -> int:
    """The model's, or the shorter one that the options ask for.

    A model without positions (alibi, recurrent) says none: any length goes, 4096 if not asked.
    """
    lengths = (getattr(text_config, name, None) for name in _CONTEXT_NAMES)
    longest = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    wanted = options.context_length
    if longest is not None and wanted is not None and wanted > longest:
        raise checkpoint.unavailable(
            f"context_length {wanted} is more than the {longest} tokens the model was made for"
        )
    return wanted or longest or _CONTEXT_OF_UNLIMITED


def sampling_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """Sampling params that `generation_config.json` spells out.

    What transformers would fill in for itself (`top_k: 50`) is not the model author's word.
    """
    spelled_out = {name: generation_config.get(name) for name in _DEFAULTS}
    defaults = {name: value for name, value in spelled_out.items() if value is not None}
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def eos_token_ids(configs: Iterable[Any], tokenizer: Tokenizer) -> frozenset[int]:
    """Every token that any of the model's configurations calls the end."""
    ids: set[int] = set()
    for owner in (*configs, tokenizer):
        named = getattr(owner, "eos_token_id", None)
        ids.update([named] if isinstance(named, int) else named or ())
    return frozenset(ids)
