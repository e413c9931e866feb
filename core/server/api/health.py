"""`GET /health`: are the models well, is the server alive, can it answer?"""

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from core.models.entry import ModelEntry
from core.models.registry import Models
from core.server.access.model_permissions import shown_to
from core.server.schemas.model_bodies import Health, ModelHealth
from core.server.services import services

Status = Literal["ok", "loading", "degraded", "failed"]

router = APIRouter(tags=["health"])
_UNWELL: dict[int | str, dict[str, Any]] = {503: {"model": Health}}


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=_UNWELL)
async def health(http: Request, response: Response) -> Health:
    """200 when at least one model answers, 503 while loading or when none does. Needs no key.

    A model that cannot answer for now, as its engine is started again say, is `loading`, with the
    reason as its error; it does not make the server `loading` while other models answer. One whose
    engine shows no sign of life is `stuck`.
    """
    answer = await _health(http)
    if answer.status in ("loading", "failed"):
        response.status_code = 503
    return answer


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live", responses=_UNWELL)
@router.get("/livez", include_in_schema=False)
async def live(http: Request, response: Response) -> Health:
    """503 when a model is stuck, so that only a restart of the server will help. Needs no key."""
    answer = await _health(http)
    if any(model.state == "stuck" for model in answer.models.values()):
        response.status_code = 503
    return answer


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready", responses=_UNWELL)
@router.get("/readyz", include_in_schema=False)
async def ready(http: Request, response: Response) -> Health:
    """200 when the default model can answer, or is loaded when it is asked to. Needs no key."""
    answer = await _health(http)
    if not _can_answer(services(http).models):
        response.status_code = 503
    return answer


async def _health(http: Request) -> Health:
    watch = services(http).watch
    await watch.check()
    models = services(http).models
    shown = {}
    for model in models.all():
        state, error = shown_to(http, model)
        shown[model.name] = ModelHealth(state=state, progress=model.progress.fraction, error=error)
    return Health(status=_status(models.all(), starting=models.starting), models=shown)


def _can_answer(models: Models) -> bool:
    if not models.all():
        return False
    state, _ = models.default.shown
    return state == "ready" or (state == "unloaded" and models.default.config.load == "request")


def _status(models: Sequence[ModelEntry], *, starting: bool) -> Status:
    """Models that are unloaded, or about to be, are as they should be."""
    first = any(model.config.load == "start" for model in models)
    states = {model.shown[0] for model in models} - {"unloaded", "draining"}
    if starting and first:
        return "loading"
    if not states - {"ready"}:
        return "ok"
    if "ready" in states:
        return "degraded" if _impaired(models) else "ok"
    return "loading" if "loading" in states else "failed"


def _impaired(models: Sequence[ModelEntry]) -> bool:
    """Whether one does not answer that should; one that is only being loaded is none."""
    return any(model.shown[0] in ("failed", "stuck") or model.unavailable for model in models)
