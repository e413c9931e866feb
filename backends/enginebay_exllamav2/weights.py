"""Weights and caches, on one GPU or several."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from enginebay import ReportProgress
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.library import exllamav2
from enginebay_exllamav2.options import CacheType, ExLlamaV2Options

_MIB = 2**20
_CACHES: dict[CacheType, str] = {
    "f16": "ExLlamaV2Cache",
    "q8": "ExLlamaV2Cache_Q8",
    "q6": "ExLlamaV2Cache_Q6",
    "q4": "ExLlamaV2Cache_Q4",
}
_TOO_LITTLE_MEMORY = ("Insufficient VRAM", "Insufficient space", "out of memory")


def free_memory(options: ExLlamaV2Options) -> int | None:
    """Bytes that are free on the GPUs that the options use, None where there are none."""
    count = torch.cuda.device_count()
    if options.gpu_split is not None:
        count = min(count, len(options.gpu_split))
    return sum(torch.cuda.mem_get_info(index)[0] for index in range(count)) if count else None


def check_gpus(checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options, config: Any) -> None:
    """Refuse a split that the machine or the model, by its `ExLlamaV2Config`, does not allow."""
    count = torch.cuda.device_count()
    split = options.gpu_split
    if split is not None and len(split) > max(count, 1):
        raise checkpoint.unavailable(
            f"gpu_split lists {len(split)} GPUs, but torch sees {count}; list that many, "
            "or unset it"
        )
    if not options.tensor_parallel:
        return
    reasons = {
        f"several GPUs, but torch sees {count}": count < 2,
        "EXL2 weights": checkpoint.weights != "exl2",
        f"an architecture other than {config.architecture}": not config.arch.lm.supports_tp,
        "a model without query and key norms": config.use_qk_norm,
        "a model without experts": config.arch.lm.is_moe,
        "an intermediate_size that is a multiple of 128": config.intermediate_size % 128,
        "a model without adapters": options.adapters,
        "paged: true": not options.paged,
    }
    if needs := [reason for reason, applies in reasons.items() if applies]:
        raise checkpoint.unavailable(f"tensor_parallel needs {needs[0]}; set it to false")


def load_weights(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    config: Any,
    tokens: int,
    report_progress: ReportProgress,
) -> tuple[Any, Any]:
    """An `ExLlamaV2` and its cache of `tokens`; nothing stays in memory when this raises."""
    cache_class = getattr(exllamav2, _CACHES[options.cache_type])
    split = options.gpu_split
    report = _module_callback(checkpoint, report_progress)
    with in_words(checkpoint):
        model = exllamav2.ExLlamaV2(config)
        try:
            if options.tensor_parallel:
                model.load_tp(
                    split,
                    callback=report,
                    expect_cache_tokens=tokens,
                    expect_cache_base=cache_class,
                )
                cache = exllamav2.ExLlamaV2Cache_TP(model, base=cache_class, max_seq_len=tokens)
            elif split is None and torch.cuda.device_count() > 1:
                cache = cache_class(model, max_seq_len=tokens, lazy=True)
                model.load_autosplit(cache, _reserved(options), callback=report)
            else:
                model.load(split, callback=report)
                cache = cache_class(model, max_seq_len=tokens)
        except BaseException:
            model.unload()
            raise
    return model, cache


def _module_callback(
    checkpoint: ExLlamaV2Checkpoint, report_progress: ReportProgress
) -> Callable[[int, int], None]:
    stage = f"loading {checkpoint.path.name}"
    return lambda done, total: report_progress(stage, 0.05 + 0.9 * done / total)


def _reserved(options: ExLlamaV2Options) -> list[int] | None:
    """Bytes to leave on each GPU, as many as there are; None for the library's own choice."""
    if options.autosplit_reserve is None:
        return None
    missing = torch.cuda.device_count() - len(options.autosplit_reserve)
    return [int(mib * _MIB) for mib in options.autosplit_reserve] + [0] * missing


@contextmanager
def in_words(checkpoint: ExLlamaV2Checkpoint) -> Iterator[None]:
    """In this block, what the library raises becomes an error about the model."""
    try:
        yield
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
            sign in str(error) for sign in _TOO_LITTLE_MEMORY
        ):
            raise checkpoint.unavailable(
                f"there is not enough memory for its weights and cache ({error}); lower "
                "cache_tokens, context_length or max_batch_size, set cache_type: q8 or q4, split "
                "it over more GPUs, or use a more quantized model"
            ) from error
        raise checkpoint.unavailable(
            f"exllamav2 cannot load it: {type(error).__name__}: {error}"
        ) from error
