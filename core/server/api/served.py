"""Resolves the model of a request, and keeps it loaded until the response has ended."""

from fastapi import Request

from core.chat.answer.counts import ModelCounts
from core.chat.answer.running import RunningRequest
from core.contract.errors import InvalidRequestError, UnsupportedParameterError
from core.models.entry import ModelEntry
from core.models.registry import FoundModel, Models
from core.models.served import ServedModel
from core.server.access.model_permissions import permitted
from core.server.http.respond import or_client_leaves
from core.server.http.track import running_request
from core.server.services import services


def model_counts(http: Request, model: ServedModel | ModelEntry) -> ModelCounts:
    """The counts of a model, including its adapters."""
    return services(http).metrics.of(model.config.name)


def named_model(http: Request, name: str | None) -> FoundModel:
    """The model a request names, in any state, if its key may use it."""
    return permitted(running_request(http).key, name, services(http).models)


def known_model(http: Request, name: str | None) -> ModelEntry:
    """The model a request names, in any state; for an adapter, its base model."""
    return named_model(http, name).entry


async def served_model(http: Request, name: str | None) -> ServedModel:
    """The model a request names, ready to answer, and kept loaded until the response has ended."""
    return await _served(http, named_model(http, name))


async def configured_model(http: Request, name: str | None) -> ModelEntry:
    """The model of the config that a request means, loaded; of an adapter the one it is for.

    It is not loaded for the request, but kept until the response has ended.
    """
    entry = known_model(http, name)
    entry.require_ready()
    await _served(http, FoundModel(entry))
    return entry


async def _served(http: Request, named: FoundModel) -> ServedModel:
    running = running_request(http)
    running.asks, running.model, running.loading = True, named.name, True
    model = await or_client_leaves(http, _held(running, services(http).models, named))
    running.loading = False
    return model


async def _held(running: RunningRequest, models: Models, named: FoundModel) -> ServedModel:
    with running.interruptible():
        return await running.hold(models.lease(named))


async def generating_model(http: Request, name: str | None) -> ServedModel:
    """As `served_model`; an error if it generates no text."""
    model = await served_model(http, name)
    if not model.info.generates:
        route = "rerank" if model.info.reranks else "embeddings"
        raise InvalidRequestError(
            f"model {model.name!r} does not generate text: use /v1/{route}", param="model"
        )
    return model


async def prompted_model(http: Request, name: str | None) -> ServedModel:
    """As `generating_model`; an error if it takes the messages of chats only."""
    model = await generating_model(http, name)
    _require_tokens(model)
    return model


async def tokenized_model(http: Request, name: str | None) -> ServedModel:
    """As `served_model`, be it for embeddings; an error if its tokens are not known."""
    model = await served_model(http, name)
    _require_tokens(model)
    return model


def _require_tokens(model: ServedModel) -> None:
    if model.info.chats:
        raise UnsupportedParameterError(
            f"model {model.name!r} takes chat messages, and its prompts are rendered elsewhere: "
            "it supports only /v1/chat/completions",
            param="model",
        )
