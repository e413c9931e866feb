"""The RAM that is free on this machine, or in its container."""

from pathlib import Path

import psutil


def free_ram(*, swap: bool = False, container: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that programs can have without others being pushed out; `swap`: with free swap.

    Page cache counts as free. In a container with a limit (cgroup v2), no more than is left of it.
    """
    free: int = psutil.virtual_memory().available
    if swap:
        free += free_swap()
    left = _left_in(container)
    return free if left is None else min(free, left)


def free_swap() -> int:
    """Bytes of swap that are free."""
    free: int = psutil.swap_memory().free
    return free


def _left_in(container: Path) -> int | None:
    try:
        limit = int((container / "memory.max").read_text())
        used = int((container / "memory.current").read_text())
        lines = (container / "memory.stat").read_text().splitlines()
        fields = dict(line.split() for line in lines)
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return None
    return max(0, limit - used + int(fields.get("inactive_file", 0)))
