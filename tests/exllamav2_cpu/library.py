"""Importing exllamav2 over the stand-in, and taking it away again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from types import ModuleType


def missing() -> str | None:
    """Why exllamav2 cannot be tested here; `None` if it can."""
    for name in ("exllamav2", "torch"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    return None


@contextmanager
def installed() -> Iterator[ModuleType]:
    """`import exllamav2` works inside the block, in all threads, and gives the module.

    Behind the block there is no trace of it in `sys.modules`; the next block finds the same
    modules again, so that their objects stay good. Inside, PyTorch computes on one thread, as after
    the library's own import.
    """
    import torch

    threads = torch.get_num_threads()
    modules = _modules()
    before = {name: module for name, module in sys.modules.items() if _is_of_exllamav2(name)}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    torch.set_num_threads(1)
    try:
        yield modules["exllamav2"]
    finally:
        torch.set_num_threads(threads)
        for name in [name for name in sys.modules if _is_of_exllamav2(name)]:
            del sys.modules[name]
        sys.modules.update(before)


@cache
def _modules() -> dict[str, ModuleType]:
    """All modules of exllamav2, imported once."""
    from tests.exllamav2_cpu.cuda import stay_on_cpu
    from tests.exllamav2_cpu.extension import extension

    sys.modules["exllamav2_ext"] = extension()
    try:
        with redirect_stdout(StringIO()):  # it says that this PyTorch has no CUDA
            for name in ("", ".generator", ".generator.filters", ".vlm"):
                import_module(f"exllamav2{name}")
        modules = {name: module for name, module in sys.modules.items() if _is_of_exllamav2(name)}
    finally:
        for name in [name for name in sys.modules if _is_of_exllamav2(name)]:
            del sys.modules[name]
    stay_on_cpu(module for name, module in modules.items() if name.startswith("exllamav2."))
    return modules


def _is_of_exllamav2(name: str) -> bool:
    return name.partition(".")[0] in ("exllamav2", "exllamav2_ext")
