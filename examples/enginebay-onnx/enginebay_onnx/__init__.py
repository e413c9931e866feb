"""The backend `onnx`: ONNX models on the CPU, with ONNX Runtime."""

from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from enginebay import (
    Backend,
    BackendRegister,
    BackendSettings,
    BackendUnavailableError,
    Engine,
    EngineBackend,
    hookimpl,
)


class Options(BaseModel):
    """What `options` of a model may say in config.yml."""

    model_config = ConfigDict(extra="forbid")

    context_length: int | None = Field(
        None, gt=1, description="Tokens of prompt and answer together; none: up to 8192."
    )
    max_batch_size: int = Field(8, gt=0, description="Choices decoded together; others wait.")
    threads: int | None = Field(
        None, gt=0, description="CPU threads; none: one for each physical core."
    )


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Make `backend: onnx` valid."""
    register("onnx", create, Options, requires=["onnxruntime", "tokenizers"], serves=serves)


def serves(path: Path) -> bool:
    """Whether a model for this backend is there."""
    return (path / "genai_config.json").is_file()


def create(settings: BackendSettings) -> Backend:
    """A backend for one entry of `models`."""
    return EngineBackend(partial(load, settings), isolation=settings.isolation or "process")


def load(settings: BackendSettings) -> Engine:
    """The engine; called in its own process."""
    try:
        from enginebay_onnx.loading import load_engine
    except ImportError as error:
        raise BackendUnavailableError(f"{error}; pip install enginebay-onnx") from error
    return load_engine(settings.path, settings.options or Options(), settings.report_progress)
