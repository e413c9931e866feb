"""TabbyAPI's routes for sampling overrides: list, switch, unload."""

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request

from enginebay.chat.schemas.read_body import Sent
from enginebay.config.problems import ConfigError, key_text
from enginebay.contract.errors import InvalidRequestError
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.overrides import Overrides, OverridesError
from enginebay.models.presets import Preset, load_preset, preset_files
from enginebay.server.access.auth import needs, reach
from enginebay.server.api.served import known_model
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.schemas.switch_bodies import (
    OverrideList,
    OverrideSwitchRequest,
    OverrideUnloadRequest,
)
from enginebay.server.services import services

router = APIRouter(tags=["sampling"], route_class=BodyRoute)


@router.get("/sampling/override/list")
@router.get("/sampling/overrides")
async def list_overrides(http: Request, model: str | None = None) -> OverrideList:
    """The overrides in effect for a model and, for admins, the available presets."""
    return await _listed(http, await known_model(http, model))


@router.post("/sampling/override/switch", dependencies=[needs("change_sampling")])
async def switch_overrides(body: Sent[OverrideSwitchRequest], http: Request) -> OverrideList:
    """Override sampling params of later requests; a `preset` takes precedence over `overrides`."""
    if body.preset:
        preset = await asyncio.to_thread(_preset, services(http).config.base, body.preset)
    else:
        preset = Preset(overrides=_read(body.overrides or {}))
    return await _use(http, body.model, preset)


@router.post("/sampling/override/unload", dependencies=[needs("change_sampling")])
async def unload_overrides(
    http: Request, body: Sent[OverrideUnloadRequest] | None = None
) -> OverrideList:
    """Return to `sampling` of the config, without a preset."""
    return await _use(http, body.model if body else None, Preset())


async def _use(http: Request, name: str | None, preset: Preset) -> OverrideList:
    model = await known_model(http, name) if name else None

    async def use() -> None:
        if model:
            model.use_preset(preset)
        else:
            services(http).models.use_preset(preset)

    value = (preset.name, preset.overrides.written)
    await services(http).peers.change("preset", model.name if model else None, use, lambda: value)
    return await _listed(http, await known_model(http, name))


async def _listed(http: Request, model: ModelEntry) -> OverrideList:
    presets = list(await asyncio.to_thread(preset_files, services(http).config.base))
    return OverrideList(
        selected_preset=model.preset.name if model.preset else None,
        overrides=model.overrides.written,
        presets=presets if reach(http, "change_sampling") == "all" else [],
    )


def _preset(base: Path, name: str) -> Preset:
    known = list(preset_files(base))
    if name not in known:
        raise InvalidRequestError(
            f"there is no preset {name!r}; available: {', '.join(known) or 'none'}", param="preset"
        )
    try:
        return load_preset(name, base)
    except ConfigError as error:
        raise InvalidRequestError(str(error), param="preset") from error


def _read(written: dict[str, object]) -> Overrides:
    try:
        return Overrides(written)
    except OverridesError as error:
        path, message = error.problems[0]
        place = key_text(("overrides", *path))
        raise InvalidRequestError(f"{place}: {message}", param=place) from error
