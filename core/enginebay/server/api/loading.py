"""Loading and unloading models over HTTP: TabbyAPI's `/v1/model*`, and `/v1/models/{id}/load`.

A load continues when the client that requested it disconnects.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent
from enginebay.config.engines import engine_config
from enginebay.contract.errors import BackendUnavailableError, InvalidRequestError
from enginebay.models.catalog import Loadable
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.tabbyapi_parameters import parameters_of
from enginebay.server.access.auth import needs, reach
from enginebay.server.api.models import model_card
from enginebay.server.api.served import known_model, listed_models, named_model
from enginebay.server.http import sse
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.track import running_request
from enginebay.server.schemas.loading_bodies import (
    CardParameters,
    CurrentModel,
    LoadableList,
    LoadEvent,
    LoadOptions,
    ModelLoadRequest,
    ModelUnloadRequest,
    NamedModel,
)
from enginebay.server.schemas.model_bodies import ModelCard
from enginebay.server.services import services

router = APIRouter(tags=["models"], route_class=BodyRoute)
_LOADS, _UNLOADS = [needs("load_model")], [needs("unload_model")]


@router.get("/model")
async def current_model(http: Request) -> CurrentModel:
    """The model that answers requests without one; 503 while it is not loaded."""
    models = services(http).models
    await models.measure()
    entry = await known_model(http, None)
    model = entry.served()
    template = model.templates.choose(with_tools=False)
    parameters = CardParameters(
        **parameters_of(
            engine_config(model.config, services(http).plugins.backends), entry.context_length
        ),
        prompt_template=template.template.name if template else None,
        prompt_template_content=template.template.source if template else None,
    )
    return CurrentModel(**model_card(http, entry).model_dump(), parameters=parameters)


@router.get("/model/list")
@router.get("/model/draft/list")
async def list_loadable(http: Request) -> LoadableList:
    """The models that can be loaded: configured ones and, for admins, the model folder."""
    cards = [model_card(http, model) for model in await listed_models(http)]
    return LoadableList(data=[*cards, *await named_in_folder(http)])


async def named_in_folder(http: Request) -> list[NamedModel]:
    """The models of the folder that are not listed anyway; admins only."""
    models = services(http).models
    if reach(http, "see_model_folder") == "none":
        return []
    names = await asyncio.to_thread(services(http).kept(Loadable).folder.names)
    listed = {model.name for model in models.listed()}
    now = int(time.time())
    return [NamedModel(id=name, created=now) for name in names if name not in listed]


@router.post(
    "/model/load", dependencies=_LOADS, response_model=LoadEvent, responses={503: {}, 404: {}}
)
async def switch_model(body: Sent[ModelLoadRequest], http: Request) -> Response:
    """Load a model in place of the current one: a configured one, or one of the folder.

    The answer is a stream of `LoadEvent`s, or with `stream: false` the last of them.
    """
    models = services(http).models
    loadable = services(http).kept(Loadable)
    model, config, ignored = await loadable.prepare(
        body.name,
        backend=body.backend,
        parameters=body.parameters(),
        options=body.options,
        template=body.prompt_template,
        draft=body.draft_model.draft_model_name if body.draft_model else None,
    )
    headers = unsupported_header(http, ignored)
    drain_timeout = 0.0 if body.skip_queue else None
    task = models.switch(model, config, drain_timeout=drain_timeout)
    return await _loading(http, model, task, headers, stream=body.stream)


@router.post("/models/{model_id:path}/load", dependencies=_LOADS, response_model=LoadEvent)
async def load_model(
    model_id: str, http: Request, body: Sent[LoadOptions] | None = None
) -> Response:
    """Load a model in addition to the others. Answers as `/v1/model/load` does."""
    models = services(http).models
    loadable = services(http).kept(Loadable)
    body = body or LoadOptions()
    model, config, ignored = await loadable.prepare(
        model_id,
        parameters=body.parameters(),
        options=body.options,
        template=body.prompt_template,
        draft=body.draft_model.draft_model_name if body.draft_model else None,
    )
    headers = unsupported_header(http, ignored)
    return await _loading(http, model, models.load(model, config), headers, stream=body.stream)


@router.post("/model/unload", dependencies=_UNLOADS)
async def unload_current(http: Request, body: Sent[ModelUnloadRequest] | None = None) -> ModelCard:
    """Unload the current model, or the one that is named, once its requests have ended."""
    body = body or ModelUnloadRequest()
    if not body.name and not (current := await known_model(http, None)).is_loaded:
        current.require_ready()
    return await _unload(http, body.name, skip_queue=body.skip_queue)


@router.post("/models/{model_id:path}/unload", dependencies=_UNLOADS)
async def unload_model(
    model_id: str, http: Request, body: Sent[ModelUnloadRequest] | None = None
) -> ModelCard:
    """Unload a model once its requests have ended, or stop loading it."""
    return await _unload(http, model_id, skip_queue=bool(body and body.skip_queue))


async def _unload(http: Request, name: str | None, *, skip_queue: bool) -> ModelCard:
    named = await named_model(http, name)
    model = named.entry
    if name and named.adapter:
        raise InvalidRequestError(
            f"{named.adapter!r} is an adapter of {model.name!r}", param="name"
        )
    await services(http).models.unload(model, drain_timeout=0.0 if skip_queue else None)
    return model_card(http, model)


async def _loading(
    http: Request,
    model: ModelEntry,
    task: asyncio.Task[None],
    headers: dict[str, str],
    *,
    stream: bool,
) -> Response:
    running = running_request(http)
    if stream:
        ping_interval = services(http).config.server.ping_interval
        return sse.EventStreamResponse(
            sse.of_work(running, _events(model, task)), ping_interval=ping_interval, headers=headers
        )
    with running.interruptible():
        await asyncio.wait({task})
    event = finished(model)
    return Response(event.model_dump_json(), media_type="application/json", headers=headers)


async def _events(model: ModelEntry, task: asyncio.Task[None]) -> AsyncGenerator[LoadEvent, None]:
    said = _event(model)
    yield said  # before what may be an error
    async with aclosing(model.progress.watch(task)) as progress:
        async for _ in progress:
            if (event := _event(model)) != said:
                said = event
                yield event
    yield finished(model)


def _event(model: ModelEntry) -> LoadEvent:
    """What the load is at."""
    done, stage = int(model.progress.fraction * 100), model.progress.stage
    return LoadEvent(module=done, status="processing", model=model.name, stage=stage)


def finished(model: ModelEntry) -> LoadEvent:
    """The last event of a load; an error if the model is not there."""
    model.require_ready()
    if not model.is_loaded:
        raise BackendUnavailableError(f"model {model.name!r} was not loaded")
    return LoadEvent(module=100, status="finished", model=model.name, stage="ready")
