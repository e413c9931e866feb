"""The FastAPI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from enginebay.config.schema import Config
from enginebay.models.loading.entry import ReportModelProgress
from enginebay.plugins import Plugins
from enginebay.server import running_wings
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
    loading,
    loras,
    metrics,
    model_memory,
    models,
    overrides,
    pooling,
    reloading,
    requests,
    stats,
    templates,
    tokens,
    usage,
)
from enginebay.server.api.error_handlers import add_error_handlers
from enginebay.server.api.plugin_routes import add_plugin_routes
from enginebay.server.http.access_log import ObserveRequests
from enginebay.server.http.request_limit import RequestLimit
from enginebay.server.http.slashes import Slashes
from enginebay.server.http.track import TrackRequests
from enginebay.server.services import Services, make_services, services_of


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
        docs_url=None,  # the page has one that needs nothing from the network
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
    requests.answer_peers(shared)
    for prefix in ("/v1", ""):
        for router in (
            chat.router,
            explain.router,
            completions.router,
            pooling.router,
            loading.router,
            embedding_models.router,
            model_memory.router,
            models.router,
            loras.router,
            downloads.router,
            hub.router,
            tokens.router,
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
    for wing in shared.wings:
        running_wings.mount(app, wing, shared)
    app.include_router(pooling.second)
    app.include_router(about.public)
    if shared.greeting:
        app.add_api_route("/", about.greet, methods=["GET", "HEAD"], include_in_schema=False)
    add_plugin_routes(app, plugins.routes, shared.paths)
    add_error_handlers(app)
    app.add_middleware(
        Guard, server=config.server, keys=keys, paths=shared.paths, uses=shared.key_uses
    )
    app.add_middleware(TrackRequests, requests=shared.serving.requests, paths=shared.paths)
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


@asynccontextmanager
async def _lifespan(app: FastAPI, keys: KeyStore) -> AsyncIterator[None]:
    shared = services_of(app)
    wings = running_wings.running(shared.wings, shared)
    async with shared.kept(AsyncExitStack), wings, _running(shared, keys):
        yield


@asynccontextmanager
async def _running(shared: Services, keys: KeyStore) -> AsyncIterator[None]:
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
