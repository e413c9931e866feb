"""`GET /v1/models` and `GET /v1/models/{id}`."""

from fastapi import APIRouter, Request

from core.models import LoadedModel
from core.schemas.models import ModelCard, ModelList

router = APIRouter(tags=["models"])


@router.head("/models", include_in_schema=False)
@router.get("/models")
async def list_models(http: Request) -> ModelList:
    """Every configured model, loaded or not."""
    return ModelList(data=[_card(model) for model in http.app.state.models.all()])


@router.get("/models/{model_id:path}")  # ids may hold slashes
async def retrieve_model(model_id: str, http: Request) -> ModelCard:
    """One model."""
    return _card(http.app.state.models.find(model_id))


def _card(model: LoadedModel) -> ModelCard:
    return ModelCard(
        id=model.name,
        created=model.created,
        backend=model.config.backend,
        state=model.state,
        context_length=model.context_length,
    )
