"""`GET /v1/models` and `GET /v1/models/{id}`."""

from fastapi import APIRouter, Request

from core.models.entry import LoadedModel
from core.models.registry import Models
from core.server.access.model_permissions import may_use, permitted_name, shown_to
from core.server.api.served import running_request
from core.server.schemas.model_bodies import Memory, ModelCard, ModelList

router = APIRouter(tags=["models"])


@router.head("/models", include_in_schema=False)
@router.get("/models")
async def list_models(http: Request) -> ModelList:
    """Every model, loaded or not, their adapters as far as they are known, and dummy names.

    Of those, the ones that the request's key may use.
    """
    models: Models = http.app.state.models
    running = running_request(http)
    await models.measure()
    everything = models.all()
    adapted = [model.adapted(name) for model in everything for name in model.adapters]
    usable = [model for model in (*everything, *adapted) if may_use(running.key, model)]
    cards = [model_card(http, model) for model in usable]
    if models.dummies and everything and may_use(running.key, models.default):
        default = model_card(http, models.default)
        named = {"parent": default.id, "aliases": []}
        cards += [default.model_copy(update={"id": name, **named}) for name in models.dummies]
    return ModelList(data=cards)


@router.get("/models/{model_id:path}")  # ids may hold slashes
async def retrieve_model(model_id: str, http: Request) -> ModelCard:
    """One model."""
    models: Models = http.app.state.models
    running = running_request(http)
    await models.measure()
    return model_card(http, models.find(permitted_name(running.key, model_id, models) or model_id))


def model_card(http: Request, model: LoadedModel) -> ModelCard:
    """What clients get to know of a model."""
    memory = model.memory
    state, error = shown_to(http, model)
    return ModelCard(
        id=model.name,
        created=model.created,
        backend=model.config.backend,
        state=state,
        progress=model.progress.fraction,
        stage=model.progress.stage,
        error=error,
        load=model.config.load,
        pinned=model.config.pinned,
        aliases=[] if model.adapter else model.config.aliases,
        parent=model.config.name if model.adapter else model.config.like,
        context_length=model.context_length,
        max_model_len=model.context_length,
        memory=Memory(ram=memory.ram, gpu=memory.gpu) if memory else None,
        requests=model.use.count,
        loaded_at=model.loaded_at,
        last_used=model.last_used,
    )
