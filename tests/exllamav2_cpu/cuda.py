"""What exllamav2's modules find in place of `torch.cuda` and of CUDA device names."""

from collections.abc import Iterable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def without_cuda() -> ModuleType:
    """A copy of the module `torch` with one device, the CPU, which answers for CUDA's first."""
    module = ModuleType("torch")
    vars(module).update(vars(torch))

    def nothing(*_: Any, **__: Any) -> None:
        pass

    vars(module).update(
        torch=module,
        device=lambda device: torch.device("cpu"),
        cuda=SimpleNamespace(
            Stream=lambda device, priority: None,
            stream=nullcontext,
            device=nullcontext,
            set_stream=nothing,
            set_device=nothing,
            synchronize=nothing,
            empty_cache=nothing,
            device_count=lambda: 1,
            memory_allocated=lambda device: 0,
        ),
    )
    return module


def stay_on_cpu(modules: Iterable[ModuleType]) -> None:
    """Let these modules of exllamav2 see the CPU where they expect CUDA devices."""
    replacements = {"torch": without_cuda(), "_torch_device": lambda index: "cpu"}
    for module in modules:
        for name, value in replacements.items():
            if hasattr(module, name):
                setattr(module, name, value)
