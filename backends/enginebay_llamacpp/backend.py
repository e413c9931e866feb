"""The `llamacpp` backend: GGUF files."""

from functools import partial
from pathlib import Path

from enginebay import Backend, BackendRegister, BackendSettings, Engine, EngineBackend, hookimpl
from enginebay_checkpoint.libraries import missing, spin
from enginebay_llamacpp.estimate import estimate_memory
from enginebay_llamacpp.files import gguf_files, is_later_part, is_mmproj
from enginebay_llamacpp.options import LlamaCppOptions


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Add the backend; its libraries are imported when a model is started."""
    requires = ("llama_cpp",)
    register(
        "llamacpp",
        create,
        LlamaCppOptions,
        requires=requires,
        serves=_is_gguf,
        estimate=estimate_memory,
        saves_kv=True,
    )


def create(settings: BackendSettings) -> Backend:
    """A backend on llama.cpp, in a process of its own, as a failed assertion of it ends one."""
    home = settings.isolation or "process"
    return EngineBackend(partial(_start, settings), isolation=home)


def _is_gguf(path: Path) -> bool:
    """A GGUF file of a model, the first where it is split, or a folder with one."""
    files = gguf_files(path) if path.is_dir() else [path]
    return any(
        file.suffix.lower() == ".gguf" and not is_mmproj(file) and not is_later_part(file)
        for file in files
    )


def _start(settings: BackendSettings) -> Engine:
    spin(10_000)
    try:
        from enginebay_llamacpp.loading import load_engine
    except ImportError as error:
        raise missing("llamacpp", "llama-cpp-python", error) from error
    return load_engine(settings)
