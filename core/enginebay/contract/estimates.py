"""What a model will take of memory, as a backend says before it loads one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.contract.backend_settings import BackendSettings


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of RAM and of GPU memory."""

    ram: int = 0
    gpu: int = 0

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(self.ram + other.ram, self.gpu + other.gpu)

    def since(self, before: "MemoryUse") -> "MemoryUse":
        """The increase since `before`; decreases count as 0."""
        return MemoryUse(max(0, self.ram - before.ram), max(0, self.gpu - before.gpu))

    def highest(self, other: "MemoryUse") -> "MemoryUse":
        """The larger one of each kind."""
        return MemoryUse(max(self.ram, other.ram), max(self.gpu, other.gpu))


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that are free: of RAM, of swap, and of all GPUs together.

    `gpu` is None where there is no GPU, or where nobody knows.
    """

    ram: int
    gpu: int | None = None
    swap: int = 0

    def __add__(self, use: MemoryUse) -> "FreeMemory":
        gpu = None if self.gpu is None else self.gpu + use.gpu
        return FreeMemory(self.ram + use.ram, gpu, self.swap)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """What one part of a model takes: `weights`, `kv_cache`, `saved_kv`, `buffers`, `mmproj` …"""

    name: str
    ram: int = 0
    gpu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What a model will take with its options, given what is free, and what it will choose then.

    `least` is what it cannot do without: the parts with the smallest cache that the options allow.
    `mapped`: of its RAM, what the system can drop and read again, as it can pages of a mapped file.
    A load is refused only if not even the rest fits. `short`: with more free memory it would do
    better (a longer context, more layers on the GPU), so idle models make room for it. `gpu_layers`
    of `layers` are on the GPU, None where layers are not placed one by one. `smaller`: changes of
    the options with which it takes less, such as `{"max_batch_size": 4}`; of those with the same
    names the mildest comes first. `note`: how much the model can do at once, why, and which option
    changes it.
    """

    parts: tuple[MemoryPart, ...]
    least: MemoryUse
    mapped: int = 0
    context_length: int | None = None
    gpu_layers: int | None = None
    layers: int | None = None
    short: bool = False
    smaller: tuple[Mapping[str, Any], ...] = ()
    note: str = ""

    @property
    def total(self) -> MemoryUse:
        """All parts together."""
        return MemoryUse(sum(p.ram for p in self.parts), sum(p.gpu for p in self.parts))


EstimateMemory = Callable[[BackendSettings, FreeMemory], MemoryEstimate]
"""Reads headers only and imports no engine library; blocks briefly.

`BackendUnavailableError` for files that cannot be read. On any thread.
"""
