"""Memory use of models, as reported by the operating system and the GPU driver."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from enginebay.contract.estimates import FreeMemory, MemoryUse
from enginebay.engine.host_memory import free_ram, free_swap

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".data")
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.)")


class Meter(Protocol):
    """Total and used memory. Called on any thread; takes milliseconds."""

    def total(self) -> MemoryUse:
        """All the memory of this machine."""

    def free(self) -> FreeMemory:
        """What is free now; in a container, of its limit."""

    def gpu_taken(self) -> int:
        """Bytes of GPU memory in use by any process."""

    def of_process(self, pid: int) -> MemoryUse | None:
        """The memory use of a process and its children; None if it is gone.

        `gpu` is 0 where the driver does not report it per process, as in most containers.
        """


class SystemMeter:
    """The real meter: psutil for resident memory, NVML for NVIDIA GPUs, if installed."""

    def total(self) -> MemoryUse:
        return MemoryUse(psutil.virtual_memory().total, sum(total for total, _ in self._gpus()))

    def free(self) -> FreeMemory:
        gpus = self._gpus()
        gpu = sum(total - taken for total, taken in gpus) if gpus else None
        return FreeMemory(free_ram(), gpu, free_swap())

    def gpu_taken(self) -> int:
        return sum(taken for _, taken in self._gpus())

    def of_process(self, pid: int) -> MemoryUse | None:
        try:
            process = psutil.Process(pid)
            family = [process, *([] if pid == os.getpid() else process.children(recursive=True))]
        except psutil.Error:
            return None
        ram = 0
        for member in family:
            with suppress(psutil.Error):  # it has ended meanwhile
                ram += member.memory_info().rss
        return MemoryUse(ram, self._gpu_of({member.pid for member in family}))

    def _gpus(self) -> list[tuple[int, int]]:
        """Total and used bytes of each GPU."""
        with _nvml() as nvml:
            infos = [nvml.nvmlDeviceGetMemoryInfo(gpu) for gpu in _handles(nvml)]
            return [(int(info.total), int(info.used)) for info in infos]

    def _gpu_of(self, pids: set[int]) -> int:
        with _nvml() as nvml:
            processes = [
                process
                for gpu in _handles(nvml)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
            ]
            return sum(int(p.usedGpuMemory or 0) for p in processes if p.pid in pids)


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVIDIA's library, initialised; None on a machine without it."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, or whatever a driver that is half there raises
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> list[Any]:
    count = nvml.nvmlDeviceGetCount() if nvml else 0
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]


def weight_files(path: str) -> list[Path]:
    """The files of a model's weights. `path` is a folder, or a file, maybe one of several parts
    (`-00001-of-00003`), or empty for a model without files."""
    here = Path(path)
    if path and here.is_dir():
        return sorted(
            file for file in here.iterdir() if file.suffix.lower() in _WEIGHTS and file.is_file()
        )
    if here.is_file():
        name = _PART.sub("", here.name)
        return sorted(file for file in here.parent.iterdir() if _PART.sub("", file.name) == name)
    return []


def size_of_files(path: str) -> int:
    """Bytes of a model's weights on disk: the estimate before its first load."""
    return sum(file.stat().st_size for file in weight_files(path))


def gib(size: int) -> str:
    """`1.5 GiB`; what is less than a tenth of one, but something, in MiB."""
    return f"{size / 2**20:.0f} MiB" if 0 < size < 2**30 / 10 else f"{size / 2**30:.1f} GiB"
