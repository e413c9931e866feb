"""The size of the KV cache, and whether model and cache fit the GPUs."""

import logging
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from enginebay import BackendUnavailableError
from enginebay_checkpoint.adapter import AdapterFolder
from enginebay_checkpoint.folder import Checkpoint
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.options import (
    PAGE_TOKENS,
    AdapterOptions,
    CacheType,
    ExLlamaV2Options,
    padded,
)

logger = logging.getLogger(__name__)

# What is computed on the way takes its room, too.
_SHARE_OF_FREE_MEMORY = 0.9
_TOKENS_A_CHOICE = 4096
_GIB = 2**30

# Bytes of a number: of keys and values together, with a float16 scale for each 32 quantized ones.
_CACHE_BYTES: dict[CacheType, float] = {
    "f16": 2.0,
    "q8": 1.0 + 2 / 32,
    "q6": 0.75 + 2 / 32,
    "q4": 0.5 + 2 / 32,
}
# Weights that are not quantized become float16, whatever they are stored in.
_WEIGHT_BYTES = {"F32": 2, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1}


def cache_bytes_per_token(config: Any, cache_type: CacheType) -> float:
    """Of an `ExLlamaV2Config`'s model; quantized caches work on one layer in float16."""
    numbers = 2 * config.num_key_value_heads * config.head_dim
    working = 0 if cache_type == "f16" else numbers * 2
    return float(config.num_hidden_layers * numbers * _CACHE_BYTES[cache_type] + working)


def weight_bytes(checkpoint: ExLlamaV2Checkpoint) -> int:
    """Memory that a model's weights take."""
    return sum(count * _WEIGHT_BYTES.get(dtype, 2) for dtype, count in checkpoint.tensors)


def adapter_bytes(options: ExLlamaV2Options, base: Path) -> int:
    """Memory that the LoRAs of the options take, which become float16.

    Relative paths start at `base`. One that cannot be read takes none: loading it says why.
    """
    paths = [a.path if isinstance(a, AdapterOptions) else a for a in options.adapters.values()]
    total = 0
    for path in paths:
        folder = AdapterFolder("", base / Path(path).expanduser())
        with suppress(BackendUnavailableError):
            stored = Checkpoint(folder.path).read_header(folder.weights_file)
            total += sum(2 * prod(tensor.shape) for tensor in stored)
    return total


def cache_tokens(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    config: Any,
    *,
    weights: int,
    token_bytes: float,
    free: int | None,
) -> int:
    """Tokens of the cache, in whole pages: as the options say, else what serves well and fits.

    `free` bytes are on the GPUs, None where there are none. `weights` are bytes, and `token_bytes`
    those a token of context takes, of all models together. Draft tokens have room after the longest
    context. A context length that was not set may be shortened to fit.
    """
    wanted: int = config.rope.context_length + options.guessed_tokens
    if free is not None and weights > free:
        raise checkpoint.unavailable(
            f"its weights need {weights / _GIB:.1f} GiB, but only {free / _GIB:.1f} GiB are free "
            "on the GPU; stop other programs, or use a smaller or more quantized model"
        )
    if not options.paged:
        return padded(wanted)
    if options.cache_tokens:
        return padded(options.cache_tokens)
    rows = options.max_batch_size
    good = min(rows * wanted, max(wanted, rows * _TOKENS_A_CHOICE))
    if free is None:
        return padded(good)
    affordable = int((free * _SHARE_OF_FREE_MEMORY - weights) / token_bytes)
    affordable = max(affordable, 0) // PAGE_TOKENS * PAGE_TOKENS
    needed = padded(wanted) if options.context_length else PAGE_TOKENS
    if affordable < needed:
        raise checkpoint.unavailable(
            f"only {affordable} tokens of cache fit beside its weights, but contexts of "
            f"{options.context_length or 'any length'} need {needed}; lower context_length, set "
            "cache_type: q8 or q4, or set cache_tokens to try it anyway"
        )
    return min(padded(good), affordable)
