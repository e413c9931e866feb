"""`GET /v1/models` and `GET /v1/models/{id}`."""

from fastapi import APIRouter, Request

from core.models import LoadedModel
from core.schemas.models import ModelCard, ModelList

router = APIRouter(tags=["models"])


@router.head("/models", include_in_schema=False)
@router.get("/models")
async def list_models(http: Request) -> ModelList:
    """Every configured model, loaded or not, and the adapters of those that are."""
    models: list[LoadedModel] = http.app.state.models.all()
    adapted = [model.adapted(name) for model in models for name in model.adapters]
    return ModelList(data=[_card(model) for model in (*models, *adapted)])


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
        parent=model.config.name if model.adapter else None,
    )
