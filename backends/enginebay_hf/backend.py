"""The `hf` backend: models of transformers."""

from functools import partial
from pathlib import Path

from enginebay import Backend, BackendRegister, BackendSettings, Engine, EngineBackend, hookimpl
from enginebay_checkpoint.libraries import missing, spin
from enginebay_checkpoint.quantization import quant_method
from enginebay_hf.estimate import estimate_memory
from enginebay_hf.options import HFOptions


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Add the backend; its libraries are imported when a model is started."""
    requires = ("torch", "transformers")
    register(
        "hf",
        create,
        HFOptions,
        requires=requires,
        serves=_is_checkpoint,
        estimate=estimate_memory,
        saves_kv=True,
    )


def create(settings: BackendSettings) -> Backend:
    """A backend on torch and transformers, in a process of its own.

    On a thread of the server the two would compete for the GIL: with 64 streams the
    process made 1.3 times the tokens, and first tokens came in a quarter of the time.
    """
    home = settings.isolation or "process"
    return EngineBackend(partial(_start, settings), isolation=home)


def _is_checkpoint(path: Path) -> bool:
    """A folder of transformers, of weights that transformers reads."""
    if (path / "config.json").is_file():
        return quant_method(path) != "exl2" and not _is_of_gguf(path)
    return (path / "modules.json").is_file() or (path / "value_head.safetensors").is_file()


def _is_of_gguf(folder: Path) -> bool:
    """Whether its only weights are GGUF files: such repositories may have a `config.json`, too."""
    others = any(next(folder.glob(f"*.{end}"), None) for end in ("safetensors", "bin"))
    return not others and next(folder.glob("*.[gG][gG][uU][fF]"), None) is not None


def _start(settings: BackendSettings) -> Engine:
    spin(1000)
    try:
        from enginebay_hf.loading import load_engine
    except ImportError as error:
        raise missing("hf", "torch and transformers", error) from error
    return load_engine(settings)
