"""`/v1/lora*`: the LoRAs of a model, loaded and unloaded while it runs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent
from enginebay.config.paths import inside
from enginebay.config.schema import resolved_path
from enginebay.contract.errors import InvalidRequestError, ServingError, UnsupportedParameterError
from enginebay.contract.types import Lora
from enginebay.models.served import ServedModel
from enginebay.server.access.auth import needs
from enginebay.server.api.served import known_model, served_model
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import unsupported_header
from enginebay.server.schemas.lora_bodies import (
    LoraCard,
    LoraList,
    LoraLoadRequest,
    LoraLoadResponse,
    LoraToLoad,
    LoraUnloadRequest,
    LoraUnloadResponse,
)
from enginebay.server.services import services

router = APIRouter(tags=["loras"], route_class=BodyRoute)
T = TypeVar("T")


@router.get("/loras")
@router.get("/lora/list")
async def list_loras(http: Request) -> LoraList:
    """The LoRAs in `lora_dir`: PEFT folders, GGUF files and folders of one."""
    found = await asyncio.to_thread(lambda: sorted(_in_folder(_folder(http))))
    return LoraList(data=[LoraCard(id=name, created=created) for name, created in found])


@router.get("/lora")
async def loaded_loras(http: Request, model: str | None = None) -> LoraList:
    """The LoRAs that apply to requests for a model; does not load the model."""
    return LoraList(
        data=[
            LoraCard(id=each.name, created=each.created, scaling=each.lora.scaling)
            for each in (await known_model(http, model)).loras.loaded
        ]
    )


@router.post("/lora/load", dependencies=[needs("change_loras")])
async def load_loras(
    body: Sent[LoraLoadRequest], http: Request, response: Response
) -> LoraLoadResponse:
    """Replace the loaded LoRAs. The new ones apply to all requests for the model that start from
    now on.
    """
    response.headers.update(unsupported_header(http, body.unknown_fields))
    model = await served_model(http, body.model)
    refused: dict[str, ServingError] = {}
    wanted: dict[str, Lora] = {}
    for lora in body.loras:
        try:
            wanted[lora.name] = await asyncio.to_thread(_found, lora, _folder(http), model)
        except InvalidRequestError as error:
            refused[lora.name] = error
    if wanted:
        refused |= await _everywhere(http, model, lambda: _load(model, wanted))
    success = [name for name in wanted if name not in refused]
    if not success:
        raise next(iter(refused.values()))
    return LoraLoadResponse(
        success=success,
        failure=list(refused),
        errors={name: error.message for name, error in refused.items()},
    )


@router.post("/lora/unload", dependencies=[needs("change_loras")])
async def unload_loras(
    http: Request, response: Response, body: Sent[LoraUnloadRequest] | None = None
) -> LoraUnloadResponse:
    """Unload all LoRAs of a model. Running requests keep theirs until they end."""
    body = body or LoraUnloadRequest()
    response.headers.update(unsupported_header(http, sorted(body.model_extra or ())))
    model = await served_model(http, body.model)
    unloaded = await _everywhere(http, model, lambda: model.loras.unload(model.backend))
    return LoraUnloadResponse(success=list(unloaded))


async def _everywhere(http: Request, model: ServedModel, change: Callable[[], Awaitable[T]]) -> T:
    """Change the LoRAs of a model, here and at other servers that share their limits."""

    def loaded() -> list[tuple[str, float]]:
        return [(each.name, each.lora.scaling) for each in model.loras.loaded]

    return await services(http).peers.change("loras", model.config.name, change, loaded)


async def _load(model: ServedModel, wanted: dict[str, Lora]) -> dict[str, ServingError]:
    try:
        return await model.loras.load(model.backend, wanted)
    except UnsupportedParameterError as error:
        raise UnsupportedParameterError(
            f"the backend {model.config.backend!r} of model {model.config.name!r} cannot load "
            f"LoRAs while it runs: {error.message}",
            param="loras",
        ) from error


def _folder(http: Request) -> Path:
    config = services(http).config
    return Path(resolved_path(config.server.lora_dir, config.base))


def _found(asked: LoraToLoad, folder: Path, model: ServedModel) -> Lora:
    if asked.name in model.info.adapters:
        raise InvalidRequestError(
            f"{asked.name!r} is an adapter of model {model.config.name!r} in the config; ask for "
            "it as `model`",
            param="loras",
        )
    path = inside(folder, asked.name, "loras")
    if not path.exists():
        raise InvalidRequestError(
            f"there is no {asked.name!r} in {folder}, the `lora_dir` of the config", param="loras"
        )
    return Lora(str(path), 1.0 if asked.scaling is None else asked.scaling)


def _in_folder(folder: Path) -> Iterator[tuple[str, int]]:
    """Name and time of change of each LoRA that can be loaded from there by its name."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        try:
            path = inside(folder, entry.name, "loras")
        except InvalidRequestError:
            continue
        if path.is_dir():
            is_lora = (path / "adapter_config.json").is_file() or any(
                path.glob("*.[gG][gG][uU][fF]")
            )
        else:
            is_lora = path.suffix.lower() == ".gguf" and path.is_file()
        if is_lora:
            yield entry.name, int(path.stat().st_mtime)
