"""The memory that a model takes, for `enginebay models inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.cli.console import fail, print_table, stdout, table

if TYPE_CHECKING:
    from enginebay.cli.client import Target
    from enginebay.config.schema import Config
    from enginebay.plugins import Plugins
    from enginebay.server.schemas.memory_bodies import ModelMemory


def asked_memory(server: Target, name: str, context_length: int | None) -> ModelMemory | None:
    """What a running server says; None if it is not there, or does not say it to this key.

    Exits with what it says of a model of which it cannot tell, such as one on other machines.
    """
    from urllib.parse import quote

    import httpx2

    from enginebay.cli.client import ApiError, body_of, connect
    from enginebay.server.schemas.memory_bodies import ModelMemory

    asked = f"?context_length={context_length}" if context_length else ""
    path = f"/v1/models/{quote(name, safe='')}/memory{asked}"
    try:
        with connect(*server) as client:
            return ModelMemory.model_validate(body_of(client.get(path)))
    except httpx2.TransportError:
        return None
    except ApiError as error:
        if error.status == 400:
            fail(str(error))
        return None


def estimated_memory(config: Config, plugins: Plugins, context_length: int | None) -> ModelMemory:
    """What the only model of a config takes, read from its headers."""
    from enginebay.contract.errors import BackendUnavailableError
    from enginebay.models.files.model_paths import ModelPaths
    from enginebay.models.loading.fit import Estimates, with_context_length
    from enginebay.models.loading.memory import SystemMeter
    from enginebay.server.schemas.memory_bodies import ModelMemory

    model = with_context_length(config.models[0], context_length)
    estimates = Estimates(plugins, ModelPaths(config, plugins), SystemMeter())
    try:
        fit = estimates.fit(model)
    except BackendUnavailableError as error:
        fail(f"{model.name} cannot be loaded: {error.message}")
    return ModelMemory.of(model.name, fit, estimates.advice(model, fit))


def print_memory(memory: ModelMemory) -> None:
    """A table of the parts, and what would make it fit."""
    from enginebay.models.loading.memory import gib

    rows = table("memory", "RAM", "GPU")
    for part in memory.parts:
        rows.add_row(part.name.replace("_", " "), _size(part.ram), _size(part.gpu))
    rows.add_row("together", _size(memory.ram), _size(memory.gpu))
    free_gpu = "not known" if memory.free_gpu is None else gib(memory.free_gpu)
    rows.add_row("free", gib(memory.free_ram), free_gpu)
    print_table(rows)
    chosen = [f"contexts of {memory.context_length} tokens"] if memory.context_length else []
    if memory.gpu_layers is not None:
        chosen.append(f"{memory.gpu_layers} of {memory.layers} layers on the GPU")
    verdict = "it fits" if memory.fits else "it does not fit into what is free"
    stdout().print("; ".join([verdict, *chosen]))
    if memory.note:
        stdout().print(f"  {memory.note}")
    for line in memory.advice:
        stdout().print(f"  {line}")


def _size(bytes: int) -> str:
    from enginebay.models.loading.memory import gib

    return gib(bytes) if bytes else "-"
