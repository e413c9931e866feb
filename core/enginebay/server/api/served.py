"""The model of a request, for routes: waiting for it ends when the client leaves."""

from fastapi import Request

from enginebay.models.index import FoundModel
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.permissions import listed, usable
from enginebay.models.served import ServedModel
from enginebay.server.http.respond import or_client_leaves
from enginebay.server.http.track import running_request
from enginebay.server.services import services


async def named_model(http: Request, name: str | None) -> FoundModel:
    """The model a request names, in any state, if its key may use it."""
    return await services(http).serving.leases.find(running_request(http), name)


def usable_models(http: Request) -> list[ModelEntry]:
    """The models that a request's key may use: configured, or loaded from the models folder."""
    return usable(running_request(http).key, services(http).models)


async def listed_models(http: Request) -> list[ModelEntry]:
    """All models that it may use, also those that only lie in the models folder."""
    models = services(http).models
    await models.look_at_folder()
    return listed(running_request(http).key, models)


async def known_model(http: Request, name: str | None) -> ModelEntry:
    """The model a request names, in any state; for an adapter, its base model."""
    return (await named_model(http, name)).entry


async def served_model(http: Request, name: str | None) -> ServedModel:
    """The model a request names, ready to answer, and kept loaded until the response has ended."""
    leases = services(http).serving.leases
    return await or_client_leaves(http, leases.served(running_request(http), name))


async def prompted_model(http: Request, name: str | None) -> ServedModel:
    """As `served_model`; an error if it generates no text, or takes no prompts."""
    leases = services(http).serving.leases
    return await or_client_leaves(http, leases.prompted(running_request(http), name))


async def tokenized_model(http: Request, name: str | None) -> ServedModel:
    """As `served_model`, be it for embeddings; an error if its tokens are not known."""
    leases = services(http).serving.leases
    return await or_client_leaves(http, leases.tokenized(running_request(http), name))


async def configured_model(http: Request, name: str | None) -> ModelEntry:
    """The model of the config that a request means, loaded; of an adapter the one it is for.

    It is not loaded for the request, but kept until the response has ended.
    """
    entry = await known_model(http, name)
    entry.require_ready()
    leases = services(http).serving.leases
    await or_client_leaves(http, leases.hold(running_request(http), FoundModel(entry)))
    return entry
