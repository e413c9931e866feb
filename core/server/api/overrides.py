"""TabbyAPI's routes for sampling overrides: list, switch, unload."""

from fastapi import APIRouter, Depends, Request

from core.chat.schemas.read_body import Sent
from core.config.problems import ConfigError, key_text
from core.contract.errors import InvalidRequestError
from core.models.loading.entry import ModelEntry
from core.models.overrides import Overrides, OverridesError
from core.models.presets import Preset, load_preset, preset_files
from core.server.access.auth import is_admin, require_admin
from core.server.api.everywhere import everywhere
from core.server.api.served import known_model
from core.server.http.body_route import BodyRoute
from core.server.schemas.switch_bodies import (
    OverrideList,
    OverrideSwitchRequest,
    OverrideUnloadRequest,
)
from core.server.services import services

router = APIRouter(tags=["sampling"], route_class=BodyRoute)


@router.get("/sampling/override/list")
@router.get("/sampling/overrides")
async def list_overrides(http: Request, model: str | None = None) -> OverrideList:
    """The overrides in effect for a model and, for admins, the available presets."""
    return _listed(http, await known_model(http, model))


@router.post("/sampling/override/switch", dependencies=[Depends(require_admin)])
async def switch_overrides(body: Sent[OverrideSwitchRequest], http: Request) -> OverrideList:
    """Override sampling params of later requests; a `preset` takes precedence over `overrides`."""
    preset = (
        _preset(http, body.preset) if body.preset else Preset(overrides=_read(body.overrides or {}))
    )
    return await _use(http, body.model, preset)


@router.post("/sampling/override/unload", dependencies=[Depends(require_admin)])
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
    await everywhere(http, "preset", model.name if model else None, use, lambda: value)
    return _listed(http, await known_model(http, name))


def _listed(http: Request, model: ModelEntry) -> OverrideList:
    return OverrideList(
        selected_preset=model.preset.name if model.preset else None,
        overrides=model.overrides.written,
        presets=list(preset_files(services(http).config.base)) if is_admin(http) else [],
    )


def _preset(http: Request, name: str) -> Preset:
    base = services(http).config.base
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
