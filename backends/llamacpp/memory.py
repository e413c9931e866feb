"""The size and layout of the KV cache."""

import ctypes
import ctypes.util
from dataclasses import dataclass
from pathlib import Path

from backends.llamacpp.files import unavailable
from backends.llamacpp.library import llama
from backends.llamacpp.model import Model
from backends.llamacpp.options import MAX_SEQUENCES, LlamaCppOptions

_SHARE_OF_FREE_MEMORY = 0.5
_TOKENS_A_SEQUENCE = 4096
_PADDING = 256
_UNTOLD_CONTEXT = 4096
_NO_LIMIT = 2**31
_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """`tokens` of `slots` sequences; `bytes` is an estimate."""

    unified: bool
    slots: int
    tokens: int
    context_length: int
    bytes: int

    @classmethod
    def separate(cls, slots: int, context_length: int) -> "CacheSize":
        """One part for each of `slots` sequences, whatever memory that takes."""
        tokens = slots * padded(context_length)
        return cls(
            unified=False, slots=slots, tokens=tokens, context_length=context_length, bytes=0
        )


def cache_size(model: Model, options: LlamaCppOptions, *, gpu: bool) -> CacheSize:
    """As the options say, and otherwise what serves well and fits into free memory.

    Half of the memory that is free once the weights are loaded may go into the cache.
    """
    wanted = context_length(model, options)
    token_bytes = model.cache_bytes_per_token(options.cache_type_k, options.cache_type_v)
    affordable = _affordable_tokens(model, options, token_bytes, gpu=gpu)
    rows = options.max_batch_size
    unified = options.kv_unified
    if unified is None:
        unified = not _separate_serves(options, wanted, affordable, gpu=gpu)
    if unified:
        slots = min(2 * rows, MAX_SEQUENCES)
        if options.cache_tokens:
            tokens = options.cache_tokens
        else:
            good = min(rows * wanted, max(wanted, rows * _TOKENS_A_SEQUENCE))
            tokens = min(good, max(affordable, options.context_length or _PADDING))
        length = min(wanted, tokens)
    else:
        slots = rows
        length = min(wanted, (options.cache_tokens or slots * wanted) // slots)
        if not (options.context_length or options.cache_tokens):
            length = min(length, max(affordable // slots, _PADDING))
        tokens = slots * padded(length)
    if options.context_length and length < options.context_length:
        raise unavailable(
            model.path,
            f"cache_tokens {options.cache_tokens} for {slots} sequences leaves {length} tokens "
            f"each, less than context_length {options.context_length}; raise cache_tokens, lower "
            "max_batch_size or set kv_unified: true",
        )
    return CacheSize(
        unified=unified,
        slots=slots,
        tokens=padded(tokens),
        context_length=length,
        bytes=int(padded(tokens) * token_bytes),
    )


def _affordable_tokens(
    model: Model, options: LlamaCppOptions, token_bytes: float, *, gpu: bool
) -> int:
    free = free_memory(gpu=gpu)
    if free is None or not token_bytes:
        return _NO_LIMIT
    if options.mmap and not gpu:
        free -= model.bytes  # pages of a mapped file count as free, and are needed all the same
    return max(0, int(free * _SHARE_OF_FREE_MEMORY / token_bytes))


def context_length(model: Model, options: LlamaCppOptions) -> int:
    """Tokens of one sequence: as the options say, else as the model was trained for."""
    trained, wanted = model.trained_context, options.context_length
    if wanted and trained and wanted > trained and not options.extends_context:
        raise unavailable(
            model.path,
            f"context_length {wanted} exceeds the {trained} tokens the model was trained for; "
            "lower it, or extend the model with rope_scaling or rope_freq_scale",
        )
    return wanted or trained or _UNTOLD_CONTEXT


def _separate_serves(
    options: LlamaCppOptions, context_length: int, affordable: int, *, gpu: bool
) -> bool:
    """Whether splitting the cache per sequence is better.

    In a unified cache every sequence attends over the cells of all, masked. On a CPU with many
    sequences that costs more than what is gained by sharing.
    """
    needed = options.max_batch_size * context_length
    fits = needed <= (options.cache_tokens or affordable)
    return not gpu and options.max_batch_size > 8 and fits


def padded(tokens: int) -> int:
    """The next size that llama.cpp makes caches of."""
    return -(-tokens // _PADDING) * _PADDING


def free_memory(*, gpu: bool) -> int | None:
    """Bytes that are free on all GPUs together or in the machine; None if unknown."""
    return _gpu_memory() if gpu else _host_memory()


def _host_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    except (OSError, ValueError, StopIteration):
        return None


def _gpu_memory() -> int | None:
    """Asks ggml, which lies beside llama.cpp and has no bindings."""
    library = ctypes.CDLL(llama._lib._name)
    try:
        count, device = library.ggml_backend_dev_count, library.ggml_backend_dev_get
        kind, memory = library.ggml_backend_dev_type, library.ggml_backend_dev_memory
    except AttributeError:
        return None
    count.restype, device.restype = ctypes.c_size_t, ctypes.c_void_p
    device.argtypes, kind.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    total = 0
    for index in range(count()):
        free, all_of_it = ctypes.c_size_t(), ctypes.c_size_t()
        if kind(device(index)) in _GPU_TYPES:
            memory(device(index), ctypes.byref(free), ctypes.byref(all_of_it))
            total += free.value
    return total or None
