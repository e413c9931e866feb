"""The number formats that a model is stored and computed in, by torch's names."""

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.options import HFOptions

FORMAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LIMITS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}

CpuFormat = Literal["bfloat16", "narrow", "float32"]
"""How a processor computes a model of 16 bits.

`bfloat16`: as it is. `narrow`: in float32, with weights in 16 bits. `float32`: all of it.
"""

CpuCosts = Mapping[CpuFormat, float]
"""Time of a product in each format that the processor and torch offer, relative to each other."""

_DOUBLE_MEMORY = 1.15
"""float32 must be so many times faster than 16 bits, because its weights take twice the memory."""


class NumberFormat(NamedTuple):
    """The format of linear layers and embeddings, and of all else, the KV cache too."""

    weights: str
    others: str

    @property
    def is_narrow(self) -> bool:
        """Whether the weights are stored in fewer bits than they are computed in."""
        return self.weights != self.others


def choose_format(
    checkpoint: Checkpoint,
    options: HFOptions,
    device_type: str,
    costs_of_cpu: Callable[[], CpuCosts],
) -> NumberFormat | None:
    """Return the formats; None leaves a checkpoint as it is stored."""
    if options.dtype != "auto":
        return NumberFormat(options.dtype, options.dtype)
    if "quantization_config" in checkpoint.config:
        return None
    stored = stored_format(checkpoint)
    if device_type != "cpu" or stored == "float32":
        return NumberFormat(stored, stored) if stored else None
    costs = costs_of_cpu()
    possible = {**costs, "float32": costs["float32"] * _DOUBLE_MEMORY}
    if stored != "bfloat16":
        possible.pop("bfloat16", None)
    if stored is None or not options.prepack or options.device_map is not None:
        possible.pop("narrow", None)
    match min(possible, key=possible.__getitem__):
        case "bfloat16":
            return NumberFormat("bfloat16", "bfloat16")
        case "narrow":
            return NumberFormat(str(stored), "float32")
    return NumberFormat("float32", "float32")


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


def known_costs() -> CpuCosts:
    """Return the costs that were measured on this processor, or a guess from its flags."""
    return recorded_costs() or (
        {"bfloat16": 1, "float32": 2, "narrow": 3}
        if cpu_has_bfloat16()
        else {"narrow": 1, "float32": 2}
    )


def recorded_costs() -> CpuCosts | None:
    """Return the costs that were measured on this processor, if they are on disk."""
    costs = _recorded().get(_processor())
    return costs if isinstance(costs, dict) and "float32" in costs else None


def record_costs(costs: CpuCosts) -> None:
    """Keep the costs on disk for the next load; without a place to write, do nothing."""
    with contextlib.suppress(OSError, RuntimeError):
        file = _record()
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({**_recorded(), _processor(): costs}, indent=1))
        written.replace(file)


def _recorded() -> dict[str, Any]:
    try:
        recorded = json.loads(_record().read_text())
    except (OSError, RuntimeError, ValueError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def _record() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "enginebay" / "products.json"


def _processor() -> str:
    """Name what the costs depend on: processor, its instructions in use, and torch."""
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if name in os.environ]
    return ", ".join((_model_name(), f"torch {importlib.metadata.version('torch')}", *limits))


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(": ")[2]
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


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
