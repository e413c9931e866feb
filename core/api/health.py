"""`GET /health`."""

from fastapi import APIRouter, Request, Response

from core.schemas.models import Health, ModelHealth

router = APIRouter(tags=["health"])


@router.head("/health", include_in_schema=False)
@router.get("/health", responses={503: {"model": Health}})
async def health(http: Request, response: Response) -> Health:
    """200 when at least one model answers, 503 while loading or when none does. Needs no key."""
    models = {
        model.name: ModelHealth(state=model.state, progress=model.progress, error=model.error)
        for model in http.app.state.models.all()
    }
    answer = Health(status=_status({model.state for model in models.values()}), models=models)
    if answer.status in ("loading", "failed"):
        response.status_code = 503
    return answer


def _status(states: set[str]) -> str:
    if "loading" in states:
        return "loading"
    if states == {"ready"}:
        return "ok"
    return "degraded" if "ready" in states else "failed"
