"""What a GPU check ran on: the device, its driver, and the versions of what matters."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PACKAGES = (
    "enginebay",
    "torch",
    "triton",
    "transformers",
    "accelerate",
    "llama_cpp_python",
    "exllamav2",
    "flash_attn",
    "xformers",
    "llguidance",
    "numpy",
    "uvicorn",
)


def versions() -> dict[str, str]:
    """The versions of Python, CUDA and of the packages that are there."""
    have = {d.name.replace("-", "_").lower(): d.version for d in importlib.metadata.distributions()}
    found = {name: have[name] for name in PACKAGES if name in have}
    if "llama_cpp_python" not in found and importlib.util.find_spec("llama_cpp"):
        with contextlib.suppress(Exception):  # imports() has the words
            found["llama_cpp_python"] = importlib.import_module("llama_cpp").__version__
    found |= {"python": platform.python_version()}
    found.setdefault("enginebay", _checkout())
    if importlib.util.find_spec("torch") and (cuda := _torch().version.cuda):
        found["cuda"] = cuda
    return found


def devices() -> list[dict[str, Any]]:
    """The CUDA devices that torch sees."""
    if not importlib.util.find_spec("torch") or not _torch().cuda.is_available():
        return []
    driver = _driver()
    found = []
    for index in range(_torch().cuda.device_count()):
        properties = _torch().cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_mib": properties.total_memory // 2**20,
                "driver": driver,
            }
        )
    return found


def _torch() -> Any:
    return importlib.import_module("torch")


def _checkout() -> str:
    """The version of an Enginebay that is not installed."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    return str(tomllib.loads(file.read_text("utf-8"))["project"]["version"])


def _driver() -> str | None:
    if not (program := shutil.which("nvidia-smi")):
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("\n")[0] or None


def imports() -> dict[str, str]:
    """What comes of importing each engine's library in a fresh process: `ok`, or its last words."""
    found = {}
    for module, code in _IMPORTS.items():
        if not importlib.util.find_spec(module):
            continue
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        words = done.stderr.strip().splitlines()
        found[module] = "ok" if done.returncode == 0 else (words or [f"code {done.returncode}"])[-1]
    return found


# Without its compiled extension, importing exllamav2 compiles for minutes: that is left to loading.
_IMPORTS = {
    "transformers": "import transformers",
    "llama_cpp": "import llama_cpp",
    "exllamav2_ext": "import torch, exllamav2_ext, exllamav2",
    "flash_attn": "import flash_attn",
}
