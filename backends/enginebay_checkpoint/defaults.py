"""Sampling defaults and end-of-sequence tokens from a model's folder."""

from collections.abc import Iterable
from typing import Any

from enginebay_checkpoint.tokenizer import Tokenizer

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """Sampling params that `generation_config.json` spells out.

    Defaults that transformers fills in itself (`top_k: 50`) are not the model author's.
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
