"""Facts about the processor for llama.cpp."""

import os
from pathlib import Path


def physical_cores(
    cpus: Path = Path("/sys/devices/system/cpu"),
    limit: Path = Path("/sys/fs/cgroup/cpu.max"),
) -> int:
    """Cores that this process may run on, hardware threads of one core counted once.

    A second thread on a core only slows llama.cpp down, and so does one without a core.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = {_siblings(cpus / f"cpu{cpu}") for cpu in allowed}
    return max(1, min(len(cores), _quota(limit) or len(cores)))


def _siblings(cpu: Path) -> str:
    try:
        return (cpu / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return cpu.name


def _quota(path: Path) -> int | None:
    """CPUs that the container may use, None if it has no limit."""
    try:
        quota, period = path.read_text().split()
        return int(quota) // int(period)
    except (OSError, ValueError):
        return None


def has_amx(info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is an Intel processor with matrix units for 8-bit integers, on Linux."""
    try:
        return "amx_int8" in info.read_text().split()
    except OSError:
        return False
