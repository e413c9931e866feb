"""The engines of the GPU check: what each needs of a machine, and its options on a device."""

import importlib
import importlib.util
import shutil
from collections.abc import Callable
from typing import Any, Literal

Device = Literal["cuda", "cpu"]
ENGINES = ("hf", "llamacpp", "exllamav2")
REHEARSAL = "ENGINEBAY_GPU_REHEARSAL"
"""An environment variable: if it is set, the tests check everything on the CPU instead."""


def missing(engine: str, device: Device) -> str | None:
    """Why this engine cannot be checked here; None where it can.

    A library that is installed and broken is no reason: that is for the checks to find.
    """
    return _MISSING[engine](device)


def device_options(engine: str, device: Device) -> dict[str, Any]:
    """The `options` in a config that put all of a model on the device."""
    if engine == "llamacpp":
        return {"gpu_layers": "all" if device == "cuda" else 0}
    if engine == "hf":
        return {"device": device}
    return {"build_extension": device == "cuda" and not _has("exllamav2_ext")}


def can_serve(engine: str, device: Device) -> bool:
    """Whether a server of its own can run the engine: on a CPU, ExLlamaV2 needs the tests' help."""
    return device == "cuda" or engine != "exllamav2"


def _hf(device: Device) -> str | None:
    return _not_installed("torch", "transformers") or _no_cuda(device)


def _llamacpp(device: Device) -> str | None:
    if absent := _not_installed("llama_cpp"):
        return absent
    if device == "cpu":
        return None
    try:
        llama_cpp = importlib.import_module("llama_cpp")
    except Exception:
        return None
    if llama_cpp.llama_supports_gpu_offload():
        return None
    return (
        "llama-cpp-python finds no GPU: it was built for the CPU, "
        "or the driver or the CUDA libraries are not found"
    )


def _exllamav2(device: Device) -> str | None:
    absent = _not_installed("exllamav2", "torch", "transformers")
    if reason := absent or _no_cuda(device):
        return reason
    if device == "cpu" or _has("exllamav2_ext") or shutil.which("nvcc"):
        return None
    return "exllamav2 has no compiled extension (exllamav2_ext), and there is no nvcc to build it"


def _not_installed(*modules: str) -> str | None:
    absent = [module for module in modules if not _has(module)]
    return f"not installed: {', '.join(absent)}" if absent else None


def _no_cuda(device: Device) -> str | None:
    if device == "cpu":
        return None
    torch = importlib.import_module("torch")
    if torch.version.cuda is None:
        return f"needs a CUDA device: torch {torch.__version__} was built without CUDA"
    if not torch.cuda.is_available():
        return f"needs a CUDA device: torch {torch.__version__} sees none"
    return None


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


_MISSING: dict[str, Callable[[Device], str | None]] = {
    "hf": _hf,
    "llamacpp": _llamacpp,
    "exllamav2": _exllamav2,
}
