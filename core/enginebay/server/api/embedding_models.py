"""TabbyAPI's `/v1/model/embedding*`: embedding models are ordinary models here."""

import asyncio

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import BackendUnavailableError, InvalidRequestError
from enginebay.models.catalog import Loadable
from enginebay.models.loading.entry import ModelEntry
from enginebay.server.access.auth import needs
from enginebay.server.api.loading import finished, named_in_folder
from enginebay.server.api.models import model_card
from enginebay.server.api.served import listed_models, usable_models
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.track import running_request
from enginebay.server.schemas.loading_bodies import (
    EmbeddingModelLoadRequest,
    LoadableList,
    LoadEvent,
)
from enginebay.server.schemas.model_bodies import ModelCard
from enginebay.server.services import services

router = APIRouter(tags=["models"], route_class=BodyRoute)


@router.get("/model/embedding")
async def current_embedding_model(http: Request) -> ModelCard:
    """The first embedding model that is loaded; 503 while there is none."""
    return model_card(http, _loaded(http))


@router.get("/model/embedding/list")
async def list_embedding_models(http: Request) -> LoadableList:
    """Models that support embeddings, or may do so once they are loaded."""
    cards = [
        model_card(http, model)
        for model in await listed_models(http)
        if model.makes_embeddings is not False
    ]
    return LoadableList(data=[*cards, *await named_in_folder(http)])


@router.post("/model/embedding/load", dependencies=[needs("load_model")], response_model=LoadEvent)
async def load_embedding_model(body: Sent[EmbeddingModelLoadRequest], http: Request) -> Response:
    """Load an embedding model in addition to the others, and answer once it is loaded."""
    models = services(http).models
    device = body.embeddings_device
    asked = {**(body.model_extra or {}), "embeddings_device": device and device.lower()}
    model, config, ignored = (
        await services(http)
        .kept(Loadable)
        .prepare(body.name, backend=body.backend, parameters=asked)
    )
    headers = unsupported_header(http, ignored)
    was_loaded = model.is_loaded
    with running_request(http).interruptible():
        await asyncio.wait({models.load(model, config)})
    event = finished(model)
    if not model.makes_embeddings:
        if not was_loaded:
            await models.unload(model)
        raise InvalidRequestError(f"model {model.name!r} does not support embeddings", param="name")
    event.model_type = "embedding_model"
    return Response(event.model_dump_json(), media_type="application/json", headers=headers)


@router.post("/model/embedding/unload", dependencies=[needs("unload_model")])
async def unload_embedding_model(http: Request) -> ModelCard:
    """Unload the first embedding model that is loaded."""
    model = _loaded(http)
    await services(http).models.unload(model)
    return model_card(http, model)


def _loaded(http: Request) -> ModelEntry:
    for model in usable_models(http):
        if model.is_loaded and model.makes_embeddings:
            return model
    raise BackendUnavailableError("no embedding model is loaded")
