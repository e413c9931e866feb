"""The GPUs that llama.cpp can use, and its types of buffers (ggml, which has no bindings)."""

import ctypes
from collections.abc import Iterator
from typing import Any

from enginebay import FreeMemory, free_ram
from enginebay_llamacpp.library import llama

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


def free_memory(*, gpu: bool) -> FreeMemory:
    """What is free in RAM and, if the model is to use them, on all GPUs together."""
    return FreeMemory(free_ram(), _free_on_gpus() if gpu else None)


def buffer_types() -> dict[str, int]:
    """The addresses of the types of buffers that tensors can be put in, by name."""
    named = _function("ggml_backend_buft_name")
    of_device = _function("ggml_backend_dev_buffer_type")
    named.restype, named.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    of_device.restype, of_device.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    found = {}
    for device in _devices():
        if address := of_device(device):
            found[named(address).decode()] = address
    return found


def _free_on_gpus() -> int | None:
    try:
        kind, memory = _function("ggml_backend_dev_type"), _function("ggml_backend_dev_memory")
        devices = list(_devices())
    except AttributeError:
        return None
    kind.argtypes = [ctypes.c_void_p]
    memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    total = 0
    for device in devices:
        free, all_of_it = ctypes.c_size_t(), ctypes.c_size_t()
        if kind(device) in _GPU_TYPES:
            memory(device, ctypes.byref(free), ctypes.byref(all_of_it))
            total += free.value
    return total or None


def _devices() -> Iterator[int]:
    count, device = _function("ggml_backend_dev_count"), _function("ggml_backend_dev_get")
    count.restype, device.restype = ctypes.c_size_t, ctypes.c_void_p
    device.argtypes = [ctypes.c_size_t]
    return (device(index) for index in range(count()))


def _function(name: str) -> Any:
    """Of ggml, which lies beside llama.cpp: a library finds what those it was linked to have."""
    return getattr(ctypes.CDLL(llama._lib._name), name)
