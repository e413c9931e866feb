"""Bodies of `/v1/models` and `/health`."""

from typing import Literal

from pydantic import BaseModel

State = Literal["loading", "ready", "failed"]


class ModelCard(BaseModel):
    """One served model, or adapter of the model `parent`.

    `context_length` is None until it is known.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "enginebay"
    backend: str
    state: State
    context_length: int | None = None
    parent: str | None = None


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ModelHealth(BaseModel):
    """How one model is."""

    state: State
    progress: float
    error: str | None


class Health(BaseModel):
    """`ok`: every model answers; `loading`: not yet; `degraded`: some failed; `failed`: all did."""

    status: Literal["ok", "loading", "degraded", "failed"]
    models: dict[str, ModelHealth]
