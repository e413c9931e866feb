"""Prebuilt wheels of llama-cpp-python: the indexes that fit this machine, and how it is compiled.

`start.py` uses this module, so it imports the standard library only.

Two variables decide. `ENGINEBAY_LLAMACPP` is `compile` or the name of an index, such as `cpu` or
`cu124`. `CMAKE_ARGS`, which has the settings of a build, also means `compile`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PACKAGE = "llama-cpp-python"
ROOT = Path(__file__).resolve().parent
BINDINGS = ROOT / "backends" / "enginebay_llamacpp" / "bindings.py"
REPLACE = ("--force-reinstall", "--no-deps")
COMPILE = ("--no-cache-dir", f"--no-binary={PACKAGE}", "--verbose")
WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"


class CudaIndex(NamedTuple):
    """An index for a CUDA version, and the compute capabilities of the GPUs that it supports."""

    name: str
    version: int
    least: int
    greatest: int


CUDA_INDEXES = (
    CudaIndex("cu130", 130, 75, 999),  # not cu132: torch installs the libraries of CUDA 13.0
    CudaIndex("cu125", 125, 60, 999),
    CudaIndex("cu124", 124, 60, 999),
    CudaIndex("cu123", 123, 60, 999),
    CudaIndex("cu122", 122, 60, 999),
    CudaIndex("cu121", 121, 60, 999),
    CudaIndex("cu118", 118, 60, 89),
)
CMAKE_SETTING = {"cu": "-DGGML_CUDA=on", "rocm": "-DGGML_HIP=on", "vulkan": "-DGGML_VULKAN=on"}


class Gpus(NamedTuple):
    """The CUDA version of the NVIDIA driver, as 130 for 13.0, and the GPUs' capabilities."""

    cuda: int
    capabilities: tuple[int, ...]


def wish() -> str | None:
    """The build that the environment asks for: a compilation, the name of an index, or None."""
    settings = os.environ.get("CMAKE_ARGS", "")
    chosen = os.environ.get("ENGINEBAY_LLAMACPP", "")
    if settings or chosen == "compile":
        return f"compile {settings}".strip()
    return chosen or None


def pinned_version() -> str:
    """The version that this release of Enginebay was tested with, from pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'"{PACKAGE}==([\w.]+)"', text)
    return found[1] if found else ""


def fitting_indexes() -> list[str]:
    """The names of the indexes that fit this machine, best first; the last one is `cpu`."""
    if sys.platform == "darwin":
        return ["metal", "cpu"] if platform.machine() == "arm64" else ["cpu"]
    gpus = nvidia_gpus()
    names = cuda_indexes(gpus) if gpus else []
    if Path("/dev/kfd").exists() and loads("libhipblas.so.3"):  # of ROCm 7
        names.append("rocm72")
    if has_vulkan():
        names.append("vulkan")
    return [*names, "cpu"]


def cuda_indexes(gpus: Gpus) -> list[str]:
    """The newest index of each major CUDA version that the driver and all GPUs can run."""
    best: dict[int, str] = {}
    for index in CUDA_INDEXES:
        supported = all(index.least <= each <= index.greatest for each in gpus.capabilities)
        if index.version <= gpus.cuda and supported:
            best.setdefault(index.version // 10, index.name)
    return list(best.values())


def nvidia_gpus() -> Gpus | None:
    """The NVIDIA GPUs of this machine, as their driver reports them; None if there are none."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    version, count, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(version)):
        return None
    cuda.cuDeviceGetCount(ctypes.byref(count))
    capabilities = []
    for device in range(count.value):
        numbers = []
        for attribute in (75, 76):  # the major and the minor number of the compute capability
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        capabilities.append(numbers[0] * 10 + numbers[1])
    major, minor = divmod(version.value, 1000)
    return Gpus(major * 10 + minor // 10, tuple(capabilities)) if capabilities else None


def has_vulkan() -> bool:
    """Whether Vulkan has a GPU of its own to run on, and not only one inside an Intel processor."""
    if os.name == "nt":
        return loads("amdvlk64.dll")
    vendors = Path("/sys/class/drm").glob("renderD*/device/vendor")
    amd_or_nvidia = any(file.read_text().strip() in ("0x1002", "0x10de") for file in vendors)
    return amd_or_nvidia and loads("libvulkan.so.1")


def loads(library: str) -> bool:
    """Whether the system can load a library of this name."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def page(index: str) -> str:
    """The address of the page that lists the wheels of an index."""
    base = os.environ.get("ENGINEBAY_LLAMACPP_WHEELS", WHEELS).rstrip("/")
    return f"{base}/{index}/{PACKAGE}/"


def wheel_arguments(index: str) -> list[str]:
    """The options of `pip install` for the wheel of an index."""
    source = [f"--find-links={page(index)}", f"--only-binary={PACKAGE}"]
    return [*source, "--timeout=10", "--retries=0"]


def cuda_libraries(index: str) -> list[str]:
    """The packages with the CUDA libraries that the wheel of an index links."""
    major = index[2:4] if index.startswith("cu") else ""
    if not major:
        return []
    packages = ("nvidia-cuda-runtime", "nvidia-cublas")
    if int(major) >= 13:  # from there on the version is no longer part of the names
        return [f"{package}=={major}.*" for package in packages]
    return [f"{package}-cu{major}" for package in packages]


def is_installed(python: str) -> bool:
    """Whether this Python has the pinned version."""
    code = f"from importlib.metadata import version as v; print(v('{PACKAGE}'))"
    return _output([python, "-c", code]).strip() == pinned_version()


def is_cached(python: str) -> bool:
    """Whether pip has compiled the pinned version before and kept the result."""
    name = f"{PACKAGE.replace('-', '_')}-{pinned_version()}"
    return ".whl" in _output([python, "-m", "pip", "cache", "list", name])


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout


def problem(python: str) -> str | None:
    """Why the installed library does not work on this machine; None if it does."""
    command = [python, "-P", str(BINDINGS)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if not done.returncode:
        return None
    if done.returncode < 0:
        return f"its process was ended by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"its process ended with exit code {done.returncode}"


def compiling() -> str:
    """A notice that llama.cpp is compiled, with the time that it may take, and for which device."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    least, most = max(1, 20 // cores), max(3, 70 // cores)  # measured with 2 cores: 10 to 35
    notice = (
        f"Compiling llama.cpp on this machine. This may take {least} to {most} minutes "
        f"(processor cores: {cores})."
    )
    kinds = (kind for index in fitting_indexes() for kind in CMAKE_SETTING if kind in index)
    setting = next((CMAKE_SETTING[kind] for kind in kinds), None)
    if setting and not os.environ.get("CMAKE_ARGS"):
        notice += (
            "\nThis build computes on the CPU only. To compile for the GPU: "
            f'CMAKE_ARGS="{setting}" python3 start.py install llamacpp'
        )
    return notice
