"""The engines that come with Enginebay, registered through the same door as any plugin's.

Importing this package imports no engine library: that happens when a model is started.
"""

import os
from functools import partial

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
    """`hf` runs causal language models of transformers, `llamacpp` GGUF files."""
    register("hf", create_hf, HFOptions)
    register("llamacpp", create_llamacpp, LlamaCppOptions)


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


def _start_hf(settings: BackendSettings) -> Engine:
    _wait_politely()
    try:
        from backends.hf.loading import load_engine
    except ImportError as error:
        raise _missing("hf", "torch and transformers", error) from error
    return load_engine(settings)


def _start_llamacpp(settings: BackendSettings) -> Engine:
    _wait_politely()
    try:
        from backends.llamacpp.loading import load_engine
    except ImportError as error:
        raise _missing("llamacpp", "llama-cpp-python", error) from error
    return load_engine(settings)


def _wait_politely() -> None:
    """Let the threads of a matrix product soon sleep when they wait for each other.

    libgomp, which torch and llama.cpp compute with, has them spin for milliseconds, with the effect
    that one other busy program on the machine makes decoding several times slower (16 streams on 2
    cores: 218 tokens/s with this many turns, 125 with 10,000, 21 with 100,000; on a quiet machine
    all are alike). Read when the library is loaded; who sets it in the environment has their way.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _missing(name: str, libraries: str, error: ImportError) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"the {name} backend needs {libraries} ({error}); "
        f"install it with: pip install 'enginebay[{name}]'"
    )
