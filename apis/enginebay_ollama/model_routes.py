"""What Ollama's clients ask about models: `/api/tags`, `/api/show`, `/api/ps`, `/api/version`."""

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent
from enginebay.models.index import FoundModel
from enginebay.models.permissions import may_use
from enginebay.server.api.served import named_model
from enginebay.server.http.body_route import JsonRoute
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay_ollama.answer_bodies import (
    LoadedModels,
    ModelShown,
    ModelTags,
    Version,
)
from enginebay_ollama.model_cards import ModelCards
from enginebay_ollama.names import known_name
from enginebay_ollama.request_bodies import OllamaModel

router = APIRouter(tags=["ollama"], route_class=JsonRoute)

_VERSION = "0.32.0"
"""The release of Ollama whose API this is: clients refuse those that are too old for them."""


@router.get("/version")
async def version() -> Version:
    """The release of Ollama that this server is as good as."""
    return Version(version=_VERSION)


@router.head("/tags", include_in_schema=False)
@router.get("/tags")
async def tags(http: Request) -> ModelTags:
    """Every model that the request's key may use, loaded or not, with known adapters."""
    cards = services(http).kept(ModelCards)
    await services(http).models.look_at_folder()
    there = list(_usable(http))
    return ModelTags(models=[await cards.brief(found) for found in there])


@router.get("/ps")
async def loaded(http: Request) -> LoadedModels:
    """Those of them that are in memory."""
    await services(http).models.measure()
    cards = services(http).kept(ModelCards)
    there = [found for found in _usable(http) if found.entry.is_loaded and not found.adapter]
    return LoadedModels(models=[await cards.loaded(found) for found in there])


@router.post("/show", response_model=ModelShown)
async def show(body: Sent[OllamaModel], http: Request, response: Response) -> ModelShown:
    """What is known of a model; of one that was never loaded what its files say."""
    found = await named_model(http, await known_name(http, body.asked_model))
    response.headers.update(unsupported_header(http, body.unknown_keys))
    return await services(http).kept(ModelCards).shown(found)


def _usable(http: Request) -> Iterator[FoundModel]:
    key = running_request(http).key
    for model in services(http).models.listed():
        for adapter in (None, *model.adapters):
            if may_use(key, model, adapter):
                yield FoundModel(model, adapter)
