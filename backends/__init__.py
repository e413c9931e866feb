"""The engines that come with Enginebay, registered through the same door as any plugin's.

Importing this package imports no engine library: that happens when a model is started.
"""

from functools import partial

from backends.hf.options import HFOptions
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
    """`backend: hf` runs any causal language model of transformers."""
    register("hf", create_hf, HFOptions)


def create_hf(settings: BackendSettings) -> Backend:
    """A backend on torch and transformers; imported by `start()`, where the engine runs."""
    return EngineBackend(partial(_start_hf, settings), isolation=settings.isolation or "thread")


def _start_hf(settings: BackendSettings) -> Engine:
    try:
        from backends.hf.loading import load_engine
    except ImportError as error:
        raise BackendUnavailableError(
            f"the hf backend needs torch and transformers ({error}); "
            "install it with: pip install 'enginebay[hf]'"
        ) from error
    return load_engine(settings)
