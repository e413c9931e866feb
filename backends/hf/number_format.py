"""The number format that a model is computed in, by torch's names."""

import sys
from pathlib import Path

from backends.checkpoint.folder import Checkpoint
from backends.hf.options import HFOptions

FORMAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def choose_format(checkpoint: Checkpoint, options: HFOptions, device_type: str) -> str | None:
    """None leaves a quantized checkpoint as it is stored."""
    if options.dtype != "auto":
        return options.dtype
    if "quantization_config" in checkpoint.config:
        return None
    stored = stored_format(checkpoint)
    if device_type != "cpu" or stored == "float32":
        return stored
    return "bfloat16" if stored == "bfloat16" and cpu_has_bfloat16() else "float32"


def stored_format(checkpoint: Checkpoint) -> str | None:
    """The float format that most of the checkpoint's numbers are in."""
    sizes: dict[str, int] = {}
    for name, count in checkpoint.tensors:
        if known := _STORED.get(name):
            sizes[known] = sizes.get(known, 0) + count
    if sizes:
        return max(sizes, key=sizes.__getitem__)
    named = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype"))
    named = named.removeprefix("torch.")
    return named if named in FORMAT_BYTES else None


def cpu_has_bfloat16(info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    if sys.platform == "linux":
        try:
            return not {"amx_tile", "avx512_bf16"}.isdisjoint(info.read_text().split())
        except OSError:
            return False
    import torch

    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    found = [getattr(torch.cpu, name, None) for name in probes]
    return any(probe() for probe in found if probe)
