"""`GET /health`."""

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request, Response

from core.models import LoadedModel
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
    models = {
        model.name: ModelHealth(state=model.state, progress=model.progress, error=model.error)
        for model in http.app.state.models.all()
    }
    answer = Health(status=_status(http.app.state.models.all()), models=models)
    if answer.status in ("loading", "failed"):
        response.status_code = 503
    return answer


def _status(models: Sequence[LoadedModel]) -> Status:
    states = {model.state for model in models}
    if any(model.state == "loading" and not model.unavailable for model in models):
        return "loading"
    if states == {"ready"}:
        return "ok"
    if "ready" in states:
        return "degraded"
    return "loading" if "loading" in states else "failed"
