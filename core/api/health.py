"""`GET /health`."""

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request, Response

from core.models import LoadedModel, Models
from core.schemas.models import Health, ModelHealth

Status = Literal["ok", "loading", "degraded", "failed"]

router = APIRouter(tags=["health"])


@router.head("/health", include_in_schema=False)
@router.get("/health", responses={503: {"model": Health}})
async def health(http: Request, response: Response) -> Health:
    """200 when at least one model answers, 503 while loading or when none does. Needs no key.

    A model that cannot answer for now, as its engine is started again say, is `loading`, with the
    reason as its error; it does not make the server `loading` while other models answer.
    """
    models: Models = http.app.state.models
    states = {
        model.name: ModelHealth(state=model.state, progress=model.progress, error=model.error)
        for model in models.all()
    }
    answer = Health(status=_status(models.all(), starting=models.starting), models=states)
    if answer.status in ("loading", "failed"):
        response.status_code = 503
    return answer


def _status(models: Sequence[LoadedModel], *, starting: bool) -> Status:
    """Models that are unloaded, or about to be, are as they should be."""
    first = any(model.config.load == "start" for model in models)
    states = {model.state for model in models} - {"unloaded", "draining"}
    if starting and first:
        return "loading"
    if not states - {"ready"}:
        return "ok"
    if "ready" in states:
        return "degraded" if _impaired(models) else "ok"
    return "loading" if "loading" in states else "failed"


def _impaired(models: Sequence[LoadedModel]) -> bool:
    """Whether one does not answer that should; one that is only being loaded is none."""
    return any(model.state == "failed" or model.unavailable for model in models)
