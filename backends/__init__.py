"""The engines that come with Enginebay, registered through the same door as any plugin's.

Importing this package imports no engine library: that happens when a model is started.
"""

import os
from functools import partial
from pathlib import Path

from backends.checkpoint.quantization import quant_method
from backends.exllamav2.options import ExLlamaV2Options
from backends.hf.options import HFOptions
from backends.llamacpp.options import LlamaCppOptions
from enginebay import (
    Backend,
    BackendRegister,
    BackendSettings,
    BackendUnavailableError,
    Engine,
    EngineBackend,
    hookimpl,
)


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """`hf` runs causal language models of transformers, `llamacpp` GGUF files, `exllamav2` EXL2."""
    hf, llamacpp = ("torch", "transformers"), ("llama_cpp",)
    # Not exllamav2 itself: importing it to see whether it is there may compile for minutes.
    exllamav2 = ("torch", "transformers", "exllamav2_ext")
    register("hf", create_hf, HFOptions, requires=hf, serves=_is_checkpoint)
    register("llamacpp", create_llamacpp, LlamaCppOptions, requires=llamacpp, serves=_is_gguf)
    register("exllamav2", create_exllamav2, ExLlamaV2Options, requires=exllamav2, serves=_is_exl2)


def create_hf(settings: BackendSettings) -> Backend:
    """A backend on torch and transformers, in a process of its own.

    On a thread of the server the two would wait for each other's Python: with 64 streams the
    process made 1.3 times the tokens, and first tokens came in a quarter of the time.
    """
    home = settings.isolation or "process"
    return EngineBackend(partial(_start_hf, settings), isolation=home)


def create_llamacpp(settings: BackendSettings) -> Backend:
    """A backend on llama.cpp, in a process of its own, as a failed assertion of it ends one."""
    home = settings.isolation or "process"
    return EngineBackend(partial(_start_llamacpp, settings), isolation=home)


def create_exllamav2(settings: BackendSettings) -> Backend:
    """A backend on ExLlamaV2, in a process of its own: its import changes torch for all of one."""
    home = settings.isolation or "process"
    return EngineBackend(partial(_start_exllamav2, settings), isolation=home)


def _is_checkpoint(path: Path) -> bool:
    """A folder of transformers, of weights that transformers reads."""
    return (path / "config.json").is_file() and quant_method(path) != "exl2"


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" or (path.is_dir() and any(path.glob("*.gguf")))


def _is_exl2(path: Path) -> bool:
    return quant_method(path) == "exl2"


def _start_hf(settings: BackendSettings) -> Engine:
    _spin(1000)
    try:
        from backends.hf.loading import load_engine
    except ImportError as error:
        raise _missing("hf", "torch and transformers", error) from error
    return load_engine(settings)


def _start_llamacpp(settings: BackendSettings) -> Engine:
    _spin(10_000)
    try:
        from backends.llamacpp.loading import load_engine
    except ImportError as error:
        raise _missing("llamacpp", "llama-cpp-python", error) from error
    return load_engine(settings)


def _start_exllamav2(settings: BackendSettings) -> Engine:
    _spin(1000)
    try:
        from backends.exllamav2.loading import load_engine
    except ImportError as error:
        raise _missing("exllamav2", "exllamav2, torch and transformers", error) from error
    return load_engine(settings)


def _spin(turns: int) -> None:
    """How long the threads of a matrix product wait for each other before they sleep.

    By default libgomp, which torch and llama.cpp compute with, has them spin for milliseconds, with
    the effect that one other busy program on the machine makes decoding several times slower.
    Tokens/s of 2 threads on 2 cores, with such a program beside them, by turns: torch, 16 streams:
    218 with 1,000, 125 with 10,000, 21 with 100,000; llama.cpp, 4 streams: 77 with 1,000, 47 with
    10,000, 26 with 30,000. On a quiet machine torch is as fast with 1,000 turns, llama.cpp is a
    twentieth slower with 10,000 than with 100,000, and a tenth with 1,000. Read when the library is
    loaded; who sets it in the environment has their way.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(turns))


def _missing(name: str, libraries: str, error: ImportError) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"the {name} backend needs {libraries} ({error}); "
        f"install it with: python3 start.py install {name}, or without a checkout: "
        f"pip install 'enginebay[{name}]'"
    )
