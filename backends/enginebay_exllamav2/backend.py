"""The `exllamav2` backend."""

from functools import partial
from pathlib import Path

from enginebay import Backend, BackendRegister, BackendSettings, Engine, EngineBackend, hookimpl
from enginebay_checkpoint.libraries import missing, spin
from enginebay_checkpoint.quantization import quant_method
from enginebay_exllamav2.estimate import estimate_memory
from enginebay_exllamav2.options import ExLlamaV2Options


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Add the backend; its libraries are imported when a model is started."""
    # Not exllamav2 itself: importing it to see whether it is there may compile for minutes.
    requires = ("torch", "transformers", "exllamav2_ext")
    register(
        "exllamav2",
        create,
        ExLlamaV2Options,
        requires=requires,
        serves=_is_exl2,
        estimate=estimate_memory,
    )


def create(settings: BackendSettings) -> Backend:
    """A backend on ExLlamaV2, in a process of its own: its import changes torch for all of one."""
    home = settings.isolation or "process"
    return EngineBackend(partial(_start, settings), isolation=home)


def _is_exl2(path: Path) -> bool:
    return quant_method(path) == "exl2"


def _start(settings: BackendSettings) -> Engine:
    spin(1000)
    try:
        from enginebay_exllamav2.loading import load_engine
    except ImportError as error:
        raise missing("exllamav2", "exllamav2, torch and transformers", error) from error
    return load_engine(settings)
