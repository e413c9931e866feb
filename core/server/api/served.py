"""Which model a request means, and that it is kept until the response has ended."""

from fastapi import Request

from core.chat.answer.counts import ModelCounts
from core.chat.answer.running import RunningRequest
from core.contract.errors import InvalidRequestError, UnsupportedParameterError
from core.models.entry import LoadedModel
from core.models.registry import Models
from core.server.access.model_permissions import permitted_name
from core.server.http.respond import or_client_leaves
from core.server.observe.prometheus import Metrics


def running_request(http: Request) -> RunningRequest:
    """This very request among those that are being answered."""
    running: RunningRequest = http.state.running
    return running


def model_counts(http: Request, model: LoadedModel) -> ModelCounts:
    """Where what a model does is counted."""
    metrics: Metrics = http.app.state.metrics
    return metrics.of(model)


async def served_model(http: Request, name: str | None) -> LoadedModel:
    """The model a request means, ready to answer, and kept so until the response has ended."""
    models: Models = http.app.state.models
    running = running_request(http)
    permitted = permitted_name(running.key, name, models)
    running.asks, running.model, running.loading = True, permitted, True
    model = await or_client_leaves(http, _held(running, models, permitted))
    running.model, running.loading = model.name, False
    return model


async def _held(running: RunningRequest, models: Models, name: str | None) -> LoadedModel:
    with running.interruptible():
        return await running.hold(models.lease(name))


def known_model(http: Request, name: str | None) -> LoadedModel:
    """The model that a request means, in whatever state; of an adapter the one it is for."""
    models: Models = http.app.state.models
    permitted = permitted_name(running_request(http).key, name, models)
    return models.find(models.find(permitted).config.name) if permitted else models.default


async def configured_model(http: Request, name: str | None) -> LoadedModel:
    """The model of the config that a request means, loaded; of an adapter the one it is for.

    It is not loaded for the request, but kept until the response has ended.
    """
    models: Models = http.app.state.models
    running = running_request(http)
    models.get(permitted_name(running.key, name, models))
    served = await served_model(http, name)
    return models.find(served.config.name)


async def generating_model(http: Request, name: str | None) -> LoadedModel:
    """As `served_model`; an error if it generates no text."""
    model = await served_model(http, name)
    if not model.info.generates:
        route = "rerank" if model.info.reranks else "embeddings"
        raise InvalidRequestError(
            f"model {model.name!r} generates no text: use /v1/{route}", param="model"
        )
    return model


async def prompted_model(http: Request, name: str | None) -> LoadedModel:
    """As `generating_model`; an error if it takes the messages of chats only."""
    model = await generating_model(http, name)
    _require_tokens(model)
    return model


async def tokenized_model(http: Request, name: str | None) -> LoadedModel:
    """As `served_model`, be it for embeddings; an error if its tokens are not known."""
    model = await served_model(http, name)
    _require_tokens(model)
    return model


def _require_tokens(model: LoadedModel) -> None:
    if model.info.chats:
        raise UnsupportedParameterError(
            f"model {model.name!r} takes the messages of chats, and its prompts are rendered "
            "elsewhere: only /v1/chat/completions can be asked for it",
            param="model",
        )
