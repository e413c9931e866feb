"""The module `exllamav2_ext`, without what only quantised models and CUDA need."""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.exllamav2_cpu import kernels, logits, matching, quantized_cache, sampling

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    kernels.rms_norm,
    kernels.rms_norm_,
    kernels.layer_norm,
    kernels.layer_norm_,
    kernels.head_norm,
    kernels.head_norm_,
    kernels.rope_,
    kernels.gen_mrope_pos_ids,
    kernels.softcap_,
    logits.apply_rep_penalty,
    logits.logit_filter_exclusive,
    logits.fast_fill_cpu_ones_bool,
    logits.fast_fadd_cpu,
    logits.fast_copy_cpu,
    matching.partial_strings_match,
    matching.count_match,
    quantized_cache.cache_rotate,
    quantized_cache.fp16_to_q_kv,
    quantized_cache.q_to_fp16_kv,
    sampling.sample_basic,
)


def extension() -> ModuleType:
    """A new module for `sys.modules["exllamav2_ext"]`."""
    module = ModuleType("exllamav2_ext", "A stand-in for the compiled extension of ExLlamaV2.")
    module.__spec__ = ModuleSpec("exllamav2_ext", None)
    for function in (*FUNCTIONS, stloader_read):
        setattr(module, function.__name__, function)
    module.__getattr__ = _missing  # type: ignore[method-assign]
    return module


def stloader_read(filename: str, offset: int, size: int, target: Tensor) -> None:
    """Read a tensor's bytes from a file."""
    with Path(filename).open("rb") as file:
        file.seek(offset)
        read = file.readinto(memoryview(target.view(-1).view(torch.uint8).numpy()))
    if read != size:
        raise RuntimeError("I/O error reading tensor")


def _missing(name: str) -> Any:
    raise AttributeError(
        f"exllamav2_ext.{name} is not in the stand-in for CPUs (tests/exllamav2_cpu): it has what "
        "unquantised models need"
    )
