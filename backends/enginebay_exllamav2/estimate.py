"""What memory a model will take, from its config.json and the headers of its weights."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    FreeMemory,
    MemoryEstimate,
    MemoryPart,
    MemoryUse,
)
from enginebay_checkpoint.estimates import is_short, shorter_contexts
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.memory import (
    adapter_bytes,
    cache_bytes_per_token,
    cache_tokens,
    weight_bytes,
)
from enginebay_exllamav2.options import PAGE_TOKENS, ExLlamaV2Options, padded

# Python, torch and exllamav2 in a process of their own, and CUDA's own part of a GPU; what is
# computed on the way is by the library's own default sizes.
_RUNTIME, _RUNTIME_GPU = 800 << 20, 500 << 20


def estimate_memory(settings: BackendSettings, free: FreeMemory) -> MemoryEstimate:
    """What the model will take; weights and cache are on the GPUs."""
    options, base = ExLlamaV2Options.of(settings.options), Path(settings.base)
    checkpoint = ExLlamaV2Checkpoint(Path(settings.path))
    checkpoint.check()
    length = options.context_length or _config(checkpoint).max_position_embeddings
    weights, token_bytes = weight_bytes(checkpoint), _token_bytes(checkpoint, options)
    parts = [MemoryPart("weights", gpu=weights)]
    draft, adapters = 0, adapter_bytes(options, base)
    if options.draft_model:
        folder = ExLlamaV2Checkpoint(base / Path(options.draft_model).expanduser())
        draft = weight_bytes(folder)
        own = options.model_copy(update={"cache_type": options.draft_cache_type})
        token_bytes += _token_bytes(folder, own)
        parts.append(MemoryPart("draft_model", gpu=draft))
    try:
        tokens = cache_tokens(
            checkpoint,
            options,
            SimpleNamespace(rope=SimpleNamespace(context_length=length)),
            weights=weights + draft + adapters,
            token_bytes=token_bytes,
            free=free.gpu,
        )
        short = is_short(tokens, length)
    except BackendUnavailableError:
        tokens, short = padded(options.cache_tokens or length), True
    least = padded(options.cache_tokens or options.context_length or PAGE_TOKENS)
    buffers = _buffer_bytes(checkpoint, options)
    parts[1:1] = [
        MemoryPart("kv_cache", gpu=int(tokens * token_bytes)),
        MemoryPart("buffers", gpu=buffers),
    ]
    if adapters:
        parts.append(MemoryPart("adapters", gpu=adapters))
    parts.append(MemoryPart("runtime", _RUNTIME, _RUNTIME_GPU))
    needed = weights + draft + adapters + buffers + _RUNTIME_GPU + int(least * token_bytes)
    return MemoryEstimate(
        parts=tuple(parts),
        least=MemoryUse(_RUNTIME, needed),
        context_length=min(length, tokens),
        short=short,
        smaller=tuple(_smaller(options, length)),
    )


def _config(checkpoint: ExLlamaV2Checkpoint) -> Any:
    """The sizes of the language part, by transformers' names."""
    text = checkpoint.config.get("text_config")
    found = {**checkpoint.config, **text} if isinstance(text, dict) else checkpoint.config

    def number(name: str, default: int) -> int:
        value = found.get(name)
        return value if isinstance(value, int) and value > 0 else default

    heads = number("num_attention_heads", 1)
    width = number("hidden_size", 0)
    return SimpleNamespace(
        num_hidden_layers=number("num_hidden_layers", 0),
        num_key_value_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", width // heads),
        hidden_size=width,
        intermediate_size=number("intermediate_size", 4 * width),
        vocab_size=number("vocab_size", 0),
        max_position_embeddings=number("max_position_embeddings", 2048),
    )


def _token_bytes(checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options) -> float:
    return cache_bytes_per_token(_config(checkpoint), options.cache_type)


def _buffer_bytes(checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options) -> int:
    """States of a pass of prompt tokens in float16, and the logits of its last ones in float32."""
    sizes = _config(checkpoint)
    layer = options.prefill_tokens * (4 * sizes.hidden_size + 3 * sizes.intermediate_size) * 2
    return int(layer + 16 * options.max_batch_size * sizes.vocab_size * 4)


def _smaller(options: ExLlamaV2Options, length: int) -> Iterator[dict[str, Any]]:
    """Changes with which it takes less memory, the mildest first."""
    yield from shorter_contexts(length, options.cache_tokens)
    if options.cache_type == "f16":
        yield from ({"cache_type": kind} for kind in ("q8", "q6", "q4"))
    if options.max_batch_size > 4:
        yield {"max_batch_size": 4}
    if options.prefill_tokens > PAGE_TOKENS:
        yield {"prefill_tokens": PAGE_TOKENS}
    if options.draft_model:
        yield {"draft_model": None}
