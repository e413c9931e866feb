"""What the GPU check runs on: the device, its driver, versions, and whether each engine can run.

    python -m benchmarks.gpu.machine --device cuda --record FILE

Each fact is found in a process of its own, several at a time, and written down as soon as it is
known: a library that crashes or hangs while it is imported costs only its own fact.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu import engines, recording
from benchmarks.gpu.engines import Device
from benchmarks.gpu.recording import Line
from benchmarks.report import usable_cores

Json = dict[str, Any]
PACKAGES = (
    "enginebay",
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "accelerate",
    "llama_cpp_python",
    "exllamav2",
    "exllamav3",
    "flash_attn",
    "xformers",
    "llguidance",
    "numpy",
    "uvicorn",
)
_ABSENT = 77
"""The exit code of a fact that cannot be found here, as test programs have it."""


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that are there; imports none of them."""
    have = {d.name.replace("-", "_").lower(): d.version for d in importlib.metadata.distributions()}
    found = {name: have[name] for name in PACKAGES if name in have}
    found |= {"python": platform.python_version()}
    found.setdefault("enginebay", _checkout())
    return found


def devices() -> list[str]:
    """The name and driver of each NVIDIA device; none where nvidia-smi is absent or fails."""
    try:
        return _nvidia_smi("name,driver_version")
    except (OSError, subprocess.SubprocessError):
        return []


def missing(lines: list[Line]) -> dict[str, str]:
    """Why engines cannot be checked here, out of the facts; those of which nothing is known can."""
    return {
        line["test"]: line["reason"]
        for line in lines
        if line["test"] in engines.ENGINES and line["outcome"] == "skipped"
    }


def _nvidia_smi(query: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=15)
    return done.stdout.strip().splitlines()


def _checkout() -> str:
    """The version of an Enginebay that is not installed."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    return str(tomllib.loads(file.read_text("utf-8"))["project"]["version"])


# The facts; each returns its figures. SystemExit with words: it cannot be found here.


def _driver(device: Device) -> Json:
    if device == "cpu":
        raise SystemExit("a rehearsal needs no driver")
    if not shutil.which("nvidia-smi"):
        raise SystemExit("there is no nvidia-smi")
    return {"devices": _nvidia_smi("name,driver_version,memory.total,compute_cap")}


def _compiler(_: Device) -> Json:
    if not (program := shutil.which("nvcc")):
        raise SystemExit("there is no nvcc")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return {"path": program, "version": said.stdout.strip().splitlines()[-1]}


def _torch(device: Device) -> Json:
    torch = importlib.import_module("torch")
    cuda = torch.cuda.is_available()
    if not cuda and device == "cuda":
        raise SystemExit(engines.missing("hf", device) or "torch sees no CUDA device")
    properties = [
        torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
    ]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "compiled for": torch.cuda.get_arch_list() if cuda else [],
        "devices": [
            {
                "name": each.name,
                "capability": f"{each.major}.{each.minor}",
                "memory_mib": each.total_memory // 2**20,
            }
            for each in properties
        ],
    }


def _kernel(device: Device) -> Json:
    """One matrix product on the device is that of the CPU."""
    torch = importlib.import_module("torch")
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device")
    start = perf_counter()
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    on_device = (left.to(device) @ right.to(device)).cpu()
    seconds = perf_counter() - start
    furthest = float((on_device - left @ right).abs().max())
    if furthest > 0.5:  # TF32 is 0.05 off
        raise RuntimeError(f"a matrix product on the device is {furthest:.3g} off")
    return {"largest difference": furthest, "first kernel, seconds": round(seconds, 2)}


def _importable(module: str, *before: str) -> Callable[[Device], Json]:
    def fact(_: Device) -> Json:
        if not importlib.util.find_spec(module):
            raise SystemExit(f"{module} is not installed")
        for name in (*before, module):
            found = importlib.import_module(name)
        return {"version": getattr(found, "__version__", None)}

    return fact


def _engine(name: str) -> Callable[[Device], Json]:
    def fact(device: Device) -> Json:
        if reason := engines.missing(name, device):
            raise SystemExit(reason)
        return {"options": engines.device_options(name, device)}

    return fact


def _offload(_: Device) -> Json:
    if not importlib.util.find_spec("llama_cpp"):
        raise SystemExit("llama_cpp is not installed")
    llama_cpp = importlib.import_module("llama_cpp")
    return {
        "version": llama_cpp.__version__,
        "llama_supports_gpu_offload": llama_cpp.llama_supports_gpu_offload(),
        "system": llama_cpp.llama_print_system_info().decode(),
    }


FACTS: dict[str, Callable[[Device], Json]] = {
    "driver": _driver,
    "torch": _torch,
    "kernel": _kernel,
    **{engine: _engine(engine) for engine in engines.ENGINES},
    "import llama_cpp": _offload,
    # Without its compiled extension, importing exllamav2 compiles for minutes.
    "import exllamav2_ext": _importable("exllamav2_ext", "torch"),
    "import exllamav3_ext": _importable("exllamav3_ext", "torch"),
    "import transformers": _importable("transformers"),
    "import flash_attn": _importable("flash_attn"),
    "compiler": _compiler,
}


def find(name: str, device: Device, record: Path, deadline: float) -> None:
    """Write down one fact, found in a process of its own until this time of `perf_counter`."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", "--device", device, "--fact", name]
    start = perf_counter()
    seconds = max(deadline - start, 1)

    def write(outcome: recording.Outcome, reason: str = "", figures: Json | None = None) -> None:
        recording.write(record, name, outcome, reason, perf_counter() - start, figures)
        print(f"{name}: {outcome} {reason or json.dumps(figures)}", flush=True)

    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return write("failed", f"took longer than {seconds:.0f} s")
    words = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode == 0:
        write("passed", figures=json.loads(done.stdout.splitlines()[-1]))
    elif done.returncode == _ABSENT:
        write("skipped", words[-1])
    else:
        write("failed", "\n".join([f"exit code {done.returncode}", *words[-3:]]))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--record", type=Path, help="file for the facts")
    parser.add_argument("--seconds", type=float, default=30, help="for all facts")
    parser.add_argument("--fact", choices=FACTS, help="only print this one as JSON")
    options = parser.parse_args(arguments)
    if options.fact:
        try:
            print("\n" + json.dumps(FACTS[options.fact](options.device)))
        except SystemExit as absent:
            print(absent, file=sys.stderr)
            sys.exit(_ABSENT)
        return
    deadline = perf_counter() + options.seconds - 3
    with ThreadPoolExecutor(max(3, usable_cores())) as pool:  # the first ones matter most
        for name in FACTS:
            pool.submit(find, name, options.device, options.record, deadline)


if __name__ == "__main__":
    main(sys.argv[1:])
