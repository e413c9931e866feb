"""`GET /health`: model state, liveness and readiness."""

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from enginebay.models.loading.entry import ModelEntry
from enginebay.server.access.auth import sees_inside
from enginebay.server.access.disclosure import NOT_LOADED, is_named_to, shown_to
from enginebay.server.schemas.model_bodies import Health, Issue, ModelHealth
from enginebay.server.services import Services, services

ServerState = Literal["ok", "loading", "degraded", "failed"]

router = APIRouter(tags=["health"])
_UNWELL: dict[int | str, dict[str, Any]] = {503: {"model": Health}}


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=_UNWELL)
async def health(http: Request, response: Response) -> Health:
    """200 if at least one model answers, 503 while loading or if none does. Needs no key, but
    names only models that the request's key may use, or all where nobody needs one.

    A model that cannot answer for now, for example because its engine is restarting, is `loading`,
    with the reason as its
    error; it does not make the server `loading` while other models answer. One whose engine makes
    no progress is `stuck`.
    """
    models = services(http).models
    await services(http).watch.check()
    state = _state(models.all(), starting=models.starting)
    return _health(http, response, well=state in ("ok", "degraded"))


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live", responses=_UNWELL)
@router.get("/livez", include_in_schema=False)
async def live(http: Request, response: Response) -> Health:
    """503 if a model is stuck, so that only a restart of the server will help. Needs no key."""
    models = services(http).models
    await services(http).watch.check()
    return _health(http, response, well=all(m.shown[0] != "stuck" for m in models.all()))


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready", responses=_UNWELL)
@router.get("/readyz", include_in_schema=False)
async def ready(http: Request, response: Response) -> Health:
    """200 if the default model can answer, or would be loaded on request. Needs no key."""
    await services(http).watch.check()
    await services(http).models.look_at_folder()
    return _health(http, response, well=_can_answer(services(http)))


def _health(http: Request, response: Response, *, well: bool) -> Health:
    models = services(http).models
    watch = services(http).watch
    shown, issues = {}, []
    for model in models.all():
        state, error = shown_to(http, model)
        description = f"a model {NOT_LOADED if state == 'failed' else 'does not answer'}"
        if is_named_to(http, model):
            progress = model.progress.fraction
            shown[model.name] = ModelHealth(state=state, progress=progress, error=error)
            description = f"{model.name}: {error}"
        if since := watch.impaired_since(model):
            issues.append(Issue(time=since, description=description))
    if trouble := services(http).key_uses.records.trouble:
        description = f"usage is kept in memory, its file cannot be written: {trouble.reason}"
        issues.append(Issue(time=trouble.since, description=description))
    whole = _state(models.all(), starting=models.starting)
    if lost := services(http).peers.outage:
        reason = f": {lost.reason}" if sees_inside(http) else ""
        description = f"the limits that servers share cannot be reached{reason}"
        issues.append(Issue(time=lost.since, description=description))
        whole = "degraded" if whole == "ok" else whole
    response.status_code = 200 if well else 503
    return Health(
        status="healthy" if well else "unhealthy",
        issues=issues,
        state=whole,
        models=shown,
    )


def _can_answer(shared: Services) -> bool:
    if not shared.models.listed():
        return False
    model = shared.models.default
    if shared.peers.delays(model.config):
        return False
    state, _ = model.shown
    return state == "ready" or (state == "unloaded" and model.config.load == "request")


def _state(models: Sequence[ModelEntry], *, starting: bool) -> ServerState:
    """Models that are unloaded, or being unloaded, count as healthy."""
    first = any(model.config.load == "start" for model in models)
    states = {model.shown[0] for model in models} - {"unloaded", "draining"}
    if starting and first:
        return "loading"
    if not states - {"ready"}:
        return "ok"
    if "ready" in states:
        return "degraded" if any(model.impaired for model in models) else "ok"
    return "loading" if "loading" in states else "failed"
