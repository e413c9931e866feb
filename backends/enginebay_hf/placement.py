"""The device of a model, and whether the model fits."""

import torch

from enginebay import free_ram
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.estimate import beside_weights
from enginebay_hf.options import HFOptions

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


def max_memory(
    checkpoint: Checkpoint, options: HFOptions, device: torch.device
) -> dict[int | str, int] | None:
    """Bytes of weights that accelerate may put on each device; None leaves that to it.

    What the options say; else, on GPUs, what is free beside the KV cache of one context, whose
    layers lie with the weights, and what is computed on the way.
    """
    if options.max_memory:
        return {name: int(gib * _GIB) for name, gib in options.max_memory.items()}
    if device.type != "cuda":
        return None
    count = torch.cuda.device_count()
    beside = beside_weights(checkpoint, options) // count
    limits: dict[int | str, int] = {"cpu": free_memory(torch.device("cpu")) or 0}
    for index in range(count):
        limits[index] = max(0, torch.cuda.mem_get_info(index)[0] - beside)
    return limits


def free_memory(device: torch.device) -> int | None:
    """Free bytes on `device`, None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_ram(swap=True) if device.type == "cpu" else None
