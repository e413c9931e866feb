"""`GET /v1/models` and `GET /v1/models/{id}`."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request

from enginebay.contract.types import ModelInfo
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.permissions import may_use
from enginebay.server.access.disclosure import shown_to
from enginebay.server.api.served import named_model
from enginebay.server.http.track import running_request
from enginebay.server.schemas.model_bodies import (
    AnthropicModelCard,
    AnthropicModelList,
    Architecture,
    Memory,
    ModelCard,
    ModelList,
)
from enginebay.server.services import services

router = APIRouter(tags=["models"])


@router.head("/models", include_in_schema=False)
@router.get("/models")
async def list_models(http: Request) -> ModelList | AnthropicModelList:
    """Every model that the request's key may use, loaded or not, with known adapters and dummy
    names.
    """
    models = services(http).models
    running = running_request(http)
    await models.measure()
    await models.look_at_folder()
    everything = models.listed()
    adapted = [(model, name) for model in everything for name in model.adapters]
    named = [*((model, None) for model in everything), *adapted]
    cards = [model_card(http, *each) for each in named if may_use(running.key, *each)]
    if models.dummies and everything and may_use(running.key, models.default):
        default = model_card(http, models.default)
        dummy = {"parent": default.id, "aliases": []}
        cards += [default.model_copy(update={"id": name, **dummy}) for name in models.dummies]
    if not _is_of_anthropic(http):
        return ModelList(data=cards)
    data = [_for_anthropic(card) for card in cards]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicModelList(data=data, first_id=first, last_id=last)


@router.get("/models/{model_id:path}")  # ids may hold slashes
async def retrieve_model(model_id: str, http: Request) -> ModelCard | AnthropicModelCard:
    """One model."""
    await services(http).models.measure()
    named = await named_model(http, model_id)
    card = model_card(http, named.entry, named.adapter)
    return _for_anthropic(card) if _is_of_anthropic(http) else card


def model_card(http: Request, model: ModelEntry, adapter: str | None = None) -> ModelCard:
    """What clients see of a model, or of one of its adapters."""
    memory, info = model.memory, None if adapter else model.info
    state, error = shown_to(http, model)
    return ModelCard(
        id=adapter or model.name,
        created=model.created,
        backend=model.config.backend,
        source=model.source,
        state=state,
        progress=model.progress.fraction,
        stage=model.stage,
        error=error,
        load=model.config.load,
        pinned=model.config.pinned,
        aliases=[] if adapter else model.config.aliases,
        parent=model.name if adapter else model.config.like,
        context_length=model.context_length,
        max_model_len=model.context_length,
        embedding_size=info.embedding_size if info else None,
        labels=list(info.labels) if info and info.labels else None,
        architecture=architecture(model.info) if model.info else None,
        chat=model.serves_chats,
        memory=Memory(ram=memory.ram, gpu=memory.gpu) if memory else None,
        requests=model.use.count,
        loaded_at=model.loaded_at,
        last_used=model.last_used,
    )


def _is_of_anthropic(http: Request) -> bool:
    """Whether a client of Anthropic's API asks; each says which version of it."""
    return "anthropic-version" in http.headers


def _for_anthropic(card: ModelCard) -> AnthropicModelCard:
    created = datetime.fromtimestamp(card.created, UTC)
    return AnthropicModelCard(
        **card.model_dump(),
        display_name=card.id,
        created_at=created,
        max_input_tokens=card.context_length,
    )


def architecture(info: ModelInfo) -> Architecture | None:
    """What a model takes, text first; None for one that generates nothing."""
    if not info.generates:
        return None
    takes = ["text", *(kind for kind in ("image", "audio", "video") if kind in info.modalities)]
    return Architecture(input_modalities=takes, output_modalities=["text"])
