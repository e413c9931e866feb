"""The answer of `GET /v1/models/{id}/memory`."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from enginebay.models.loading.fit import Fit


class MemoryPartBody(BaseModel):
    """Bytes of RAM and of GPU memory that one part takes."""

    name: str
    ram: int
    gpu: int


class ModelMemory(BaseModel):
    """What a model takes when it is loaded with its settings, in bytes, read from its headers.

    `free_ram` and `free_gpu` are what it may take: what it holds itself, if it is loaded, is in
    them; `free_gpu` is None where no GPU is known. `fits`: whether all parts do. `context_length`
    is the one that it will have, `gpu_layers` how many of its `layers` will be on the GPU; None
    where that is not known before the load. `advice`: the settings with which it would fit.
    `note`: how much it can do at once, and which option changes that.
    """

    object: Literal["model.memory"] = "model.memory"
    id: str
    parts: list[MemoryPartBody]
    ram: int
    gpu: int
    free_ram: int
    free_gpu: int | None
    fits: bool
    context_length: int | None
    gpu_layers: int | None
    layers: int | None
    advice: list[str]
    note: str = ""

    @classmethod
    def of(cls, name: str, fit: Fit, advice: Sequence[str]) -> "ModelMemory":
        """That of an estimate."""
        estimate = fit.estimate
        total = estimate.total
        return cls(
            id=name,
            parts=[MemoryPartBody(name=p.name, ram=p.ram, gpu=p.gpu) for p in estimate.parts],
            ram=total.ram,
            gpu=total.gpu,
            free_ram=fit.free.ram,
            free_gpu=fit.free.gpu,
            fits=fit.fits,
            context_length=estimate.context_length,
            gpu_layers=estimate.gpu_layers,
            layers=estimate.layers,
            advice=list(advice),
            note=estimate.note,
        )
