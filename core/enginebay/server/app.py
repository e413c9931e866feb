"""The FastAPI application."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from enginebay.config.schema import Config
from enginebay.contract.wing import Wing
from enginebay.models.loading.entry import ReportModelProgress
from enginebay.plugins import Plugins
from enginebay.server.access.behind_proxy import BehindProxy
from enginebay.server.access.guard import Guard
from enginebay.server.access.hosts import PROGRAMS
from enginebay.server.access.key_store import KeyStore, fixed_keys, key_store
from enginebay.server.access.revoked import end_revoked
from enginebay.server.api import (
    about,
    chat,
    completions,
    downloads,
    embedding_models,
    explain,
    health,
    hub,
    llama_server,
    loading,
    loras,
    messages,
    metrics,
    model_memory,
    models,
    ollama,
    overrides,
    pooling,
    reloading,
    requests,
    responses,
    stats,
    tei,
    templates,
    tokens,
    usage,
)
from enginebay.server.api.cluster import add_cluster_route
from enginebay.server.api.error_handlers import add_error_handlers
from enginebay.server.api.plugin_routes import add_plugin_routes
from enginebay.server.http.access_log import ObserveRequests
from enginebay.server.http.request_limit import RequestLimit
from enginebay.server.http.slashes import Slashes
from enginebay.server.http.track import TrackRequests
from enginebay.server.page.page import add_page
from enginebay.server.services import Services, make_services, services_of

logger = logging.getLogger(__name__)


def create_app(
    config: Config,
    plugins: Plugins,
    *,
    keys: KeyStore | None = None,
    report_progress: ReportModelProgress | None = None,
) -> FastAPI:
    """The server as an ASGI application.

    Models are loaded in the background once it runs: until then `/health` shows their progress and
    requests wait. `report_progress` is told the same, on any thread. `keys` are those of the
    config if not given; `ConfigError` if the keys file cannot be used.
    """
    keys = keys or key_store(config)
    app = FastAPI(
        title="Enginebay",
        description="An OpenAI-compatible server for language models you host yourself.",
        version=plugins.version,
        lifespan=partial(_lifespan, keys=keys),
        openapi_url=None,  # `about` has one that knows the path before it
        docs_url=None,  # `add_page` has one that needs nothing from the network
        redoc_url=None,
        strict_content_type=False,
    )
    shared = make_services(
        config,
        plugins,
        report_progress or (lambda *_: None),
        lambda new: keys.fix(fixed_keys(new)),
    )
    app.state.services = shared
    apis = config.server.apis or ("responses", "messages", "ollama")
    if shared.sharing:
        requests.answer_others(shared, shared.sharing)
    for prefix in ("/v1", ""):
        for router in (
            chat.router,
            explain.router,
            completions.router,
            pooling.router,
            tei.router,
            loading.router,
            embedding_models.router,
            model_memory.router,
            models.router,
            loras.router,
            downloads.router,
            hub.router,
            tokens.router,
            llama_server.router,
            templates.router,
            overrides.router,
            about.router,
            reloading.router,
            stats.router,
            requests.router,
            usage.router,
        ):
            app.include_router(router, prefix=prefix, include_in_schema=prefix == "/v1")
        app.include_router(health.router, prefix=prefix, include_in_schema=not prefix)
        if config.server.metrics != "off":
            app.include_router(metrics.router, prefix=prefix, include_in_schema=not prefix)
        for api, router in (("responses", responses.router), ("messages", messages.router)):
            if api in apis:
                app.include_router(router, prefix=prefix, include_in_schema=prefix == "/v1")
    if "ollama" in apis:
        app.include_router(ollama.router, prefix="/api")
    for wing in shared.wings:
        _add_routers(app, wing, shared)
    app.include_router(pooling.second)
    app.include_router(about.public)
    add_cluster_route(app, shared.cluster)
    add_page(app, ollama="ollama" in apis)
    add_plugin_routes(app, plugins.routes, shared.paths)
    add_error_handlers(app)
    app.add_middleware(
        Guard, server=config.server, keys=keys, paths=shared.paths, uses=shared.key_uses
    )
    app.add_middleware(TrackRequests, requests=shared.serving.requests)
    app.add_middleware(
        RequestLimit,
        max_bytes=config.server.max_request_bytes,
        max_values=config.server.max_request_values,
        seconds=config.server.request_timeout,
        paths=shared.paths,
    )
    app.add_middleware(
        CORSMiddleware,
        allow_origins=config.server.cors_origins,
        allow_origin_regex=PROGRAMS,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
    )
    app.add_middleware(ObserveRequests, metrics=shared.metrics)
    app.add_middleware(BehindProxy, server=config.server)
    app.add_middleware(Slashes, root=config.server.root_path or "", paths=shared.paths)
    return app


def _add_routers(app: FastAPI, wing: Wing, shared: Services) -> None:
    """Add a wing's routes, or say in the log why there are none."""
    try:
        for router in wing.routers(shared):
            app.include_router(router)
    except Exception:
        logger.exception("the wing %s has failed; the server goes on without its routes", wing.name)


@asynccontextmanager
async def _lifespan(app: FastAPI, keys: KeyStore) -> AsyncIterator[None]:
    shared = services_of(app)
    async with AsyncExitStack() as stack:
        for wing in shared.wings:
            await stack.enter_async_context(wing.running(shared))
        async with _running(shared, keys):
            yield


@asynccontextmanager
async def _running(shared: Services, keys: KeyStore) -> AsyncIterator[None]:
    if shared.sharing:
        shared.sharing.front.start()
    loading = asyncio.create_task(shared.models.load_at_start())
    watching = asyncio.create_task(shared.watch.run())
    await shared.key_uses.records.write()  # which also reads what was used today
    recording = asyncio.create_task(shared.key_uses.run())
    revoking = asyncio.create_task(end_revoked(keys, shared.serving.requests, shared.models))
    try:
        yield
    finally:
        shared.bodies.close()
        shared.downloads.close()
        loading.cancel()
        watching.cancel()
        revoking.cancel()
        recording.cancel()
        shared.watch.close()
        await asyncio.gather(loading, watching, revoking, recording, return_exceptions=True)
        await shared.serving.close()
        await shared.key_uses.close()
        if shared.response_store:
            await shared.response_store.close()
        if shared.sharing:
            await shared.sharing.front.close()
        if shared.cluster:
            await shared.cluster.close()
