"""Import llama-cpp-python, and the CUDA libraries of pip's packages where it needs them.

As a program, this checks that the library works on this machine: `python -P bindings.py` fails if
the library cannot be loaded, or was built for another processor. It needs no other module of
Enginebay, because `start.py` runs it before Enginebay is installed.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else an assertion that fails starts a debugger

CUDA_LIBRARIES = ("libcudart.so.*", "libcublasLt.so.*", "libcublas.so.*")
_FLAGS = {  # names of llama.cpp's features, and of the same in /proc/cpuinfo
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}


def load_cuda_libraries() -> None:
    """Load the CUDA libraries that pip has installed; a prebuilt wheel links them by name only."""
    found = find_spec("llama_cpp")
    assert found
    assert found.origin
    packages = Path(found.origin).parents[1] / "nvidia"
    for name in CUDA_LIBRARIES:
        for path in sorted(packages.glob(f"*/lib/{name}")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def lacking(features: str, cpuinfo: str) -> list[str]:
    """The processor's features that the library was built for and that this machine lacks.

    `features`: llama.cpp's list, such as `CPU : AVX = 1 | AVX2 = 1`. `cpuinfo`: /proc/cpuinfo.
    """
    lines = [line for line in cpuinfo.splitlines() if line.startswith("flags")]
    flags = lines[0].split() if lines else []
    built = {part.rpartition(":")[2].strip() for part in features.split("|")}
    return [name for name, flag in _FLAGS.items() if f"{name} = 1" in built and flag not in flags]


_SPINS = "1000"
"""How often a thread looks whether the others are done before it sleeps: some microseconds."""


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """Let llama.cpp's threads sleep soon while they wait for each other, if OpenMP is loaded here.

    By default they spin for long. If another process takes a core, the threads on the other cores
    then burn their time until the scheduler returns to the thread that they wait for. Threads that
    never spin halve the speed of a small model on a quiet machine. libgomp reads the variable once,
    when it is loaded, so other libraries and processes do not get it.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


with threads_that_sleep():
    try:
        import llama_cpp as llama_cpp
    except RuntimeError:  # a shared library is missing
        load_cuda_libraries()
        import llama_cpp as llama_cpp


def check() -> None:
    """Start llama.cpp's backends, which computes on the processor; exit if it lacks something."""
    llama_cpp.llama_backend_init()
    features = llama_cpp.llama_print_system_info().decode()
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    if "flags" in text and (missing := lacking(features, text)):
        sys.exit(f"it was built for processors with {', '.join(missing)}, which this one lacks")


if __name__ == "__main__":
    check()
