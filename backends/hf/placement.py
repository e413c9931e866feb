"""The device and number format of a model, and whether it fits."""

from pathlib import Path
from typing import Any

import torch

from backends.checkpoint.folder import Checkpoint
from backends.hf.options import HFOptions

_STORED_FORMATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_GIB = 1024**3


def choose_device(checkpoint: Checkpoint, options: HFOptions) -> torch.device:
    """The device set in the options; a `BackendUnavailableError` if it does not exist."""
    name = options.device
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        else:
            name = "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise checkpoint.unavailable(
            f"device {name} does not exist: torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} CUDA devices; choose another or use device: cpu"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise checkpoint.unavailable("device mps is not available; use device: cpu")
    return device


def choose_dtype(
    checkpoint: Checkpoint, options: HFOptions, device: torch.device
) -> torch.dtype | None:
    """The number format to compute in; None leaves a quantized checkpoint as it is stored."""
    if options.dtype != "auto":
        chosen: torch.dtype = getattr(torch, options.dtype)
        return chosen
    if "quantization_config" in checkpoint.config:
        return None
    stored = stored_dtype(checkpoint)
    if device.type != "cpu" or stored == torch.float32:
        return stored
    fast_bfloat16 = stored == torch.bfloat16 and cpu_has_bfloat16()
    return torch.bfloat16 if fast_bfloat16 else torch.float32


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """The float format that most of the checkpoint's numbers are in."""
    sizes: dict[torch.dtype, int] = {}
    for name, count in checkpoint.tensors:
        if dtype := _STORED_FORMATS.get(name):
            sizes[dtype] = sizes.get(dtype, 0) + count
    if sizes:
        return max(sizes, key=sizes.__getitem__)
    named = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    dtype = getattr(torch, str(named).removeprefix("torch."), None)
    return dtype if isinstance(dtype, torch.dtype) else None


def cpu_has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    probes: list[Any] = [
        getattr(torch.cpu, name, None)
        for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    ]
    return any(probe() for probe in probes if probe)


def check_memory(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype | None) -> None:
    """Raise before loading what cannot fit: Linux would kill the whole server instead."""
    needed = checkpoint.stored_bytes
    if dtype is not None and checkpoint.tensors:
        needed = sum(count for _, count in checkpoint.tensors) * dtype.itemsize
    free = free_memory(device)
    if free is not None and needed > free:
        raise checkpoint.unavailable(
            f"its weights need {needed / _GIB:.1f} GiB, but only {free / _GIB:.1f} GiB of memory "
            f"are free on {device}; stop other programs, or use a smaller or quantized model"
        )


def free_memory(device: torch.device) -> int | None:
    """Free bytes on `device`, None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    limits = [limit for limit in (_host_memory(), _container_memory()) if limit is not None]
    return min(limits, default=None)


def _host_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {name: int(rest.split()[0]) for name, rest in (s.split(":") for s in lines)}
    except (OSError, ValueError):
        return None
    return (kilobytes.get("MemAvailable", 0) + kilobytes.get("SwapFree", 0)) * 1024


def _container_memory(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return None
    return limit - used + int(fields.get("inactive_file", 0))
