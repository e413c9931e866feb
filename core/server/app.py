"""The FastAPI application."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from core.chat.answer.capture import Captures
from core.chat.answer.running import RunningRequests
from core.config.problems import key_text
from core.config.schema import Config, resolved_path
from core.contract.errors import InvalidRequestError, RequestTooLargeError, ServingError
from core.models.catalog import Loadable
from core.models.downloads import Downloads, places
from core.models.entry import ReportModelProgress
from core.models.registry import Models
from core.plugins import Plugins
from core.server.access.guard import Guard
from core.server.access.key_store import KeyStore, key_store
from core.server.access.model_permissions import told
from core.server.api import (
    about,
    chat,
    completions,
    downloads,
    embedding_models,
    embeddings,
    explain,
    health,
    loading,
    loras,
    metrics,
    models,
    overrides,
    requests,
    rerank,
    stats,
    templates,
    tokens,
)
from core.server.http.access_log import ObserveRequests
from core.server.http.error_response import error_response
from core.server.http.request_limit import RequestLimit
from core.server.http.respond import ClientLeft
from core.server.http.track import TrackRequests
from core.server.observe.liveness import Watch
from core.server.observe.prometheus import Metrics
from core.server.page.page import add_page

logger = logging.getLogger(__name__)

_CHECKS = 2  # constraints that are checked at once


def create_app(
    config: Config,
    plugins: Plugins,
    *,
    keys: KeyStore | None = None,
    report_progress: ReportModelProgress | None = None,
) -> FastAPI:
    """The server as an ASGI application.

    Models are loaded in the background once it runs: until then `/health` says how far they are
    and requests wait. `report_progress` is told the same, on any thread. `keys` are those of the
    config if not given; `ConfigError` if the keys file cannot be used.
    """
    app = FastAPI(
        title="Enginebay",
        description="An OpenAI-compatible server for language models you host yourself.",
        version=plugins.version,
        lifespan=_lifespan,
        docs_url=None,  # `add_page` has one that needs nothing from the network
        redoc_url=None,
        strict_content_type=False,
    )
    app.state.config = config
    app.state.plugins = plugins
    app.state.models = Models(config, plugins, report_progress or (lambda *_: None))
    app.state.loadable = Loadable(config, plugins, app.state.models)
    app.state.requests = RunningRequests()
    app.state.downloads = Downloads(places(config))
    app.state.metrics = Metrics(app.state.models, app.state.requests)
    app.state.captures = _captures(config)
    app.state.watch = Watch(app.state.models, app.state.metrics, config.server.stall_timeout)
    app.state.metrics.register(app.state.watch)
    for prefix in ("/v1", ""):
        for router in (
            chat.router,
            explain.router,
            completions.router,
            embeddings.router,
            rerank.router,
            loading.router,
            embedding_models.router,
            models.router,
            loras.router,
            downloads.router,
            tokens.router,
            templates.router,
            overrides.router,
            about.router,
            stats.router,
            requests.router,
        ):
            app.include_router(router, prefix=prefix, include_in_schema=prefix == "/v1")
        app.include_router(health.router, prefix=prefix, include_in_schema=not prefix)
        if config.server.metrics != "off":
            app.include_router(metrics.router, prefix=prefix, include_in_schema=not prefix)
    app.include_router(about.public)
    add_page(app)
    app.add_exception_handler(ServingError, _serving_error)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientLeft, _client_left)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(Guard, server=config.server, keys=keys or key_store(config))
    app.add_middleware(TrackRequests, requests=app.state.requests)
    app.add_middleware(
        RequestLimit,
        max_bytes=config.server.max_request_bytes,
        seconds=config.server.request_timeout,
    )
    if config.server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.server.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(ObserveRequests, metrics=app.state.metrics)
    return app


def _captures(config: Config) -> Captures | None:
    if config.server.capture is None:
        return None
    folder = Path(resolved_path(config.server.capture, config.base))
    return Captures(folder, config.server.capture_files)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    loading = asyncio.create_task(app.state.models.load_at_start())
    watching = asyncio.create_task(app.state.watch.run())
    # Threads of their own: however long schemas take, prompts are built meanwhile.
    app.state.checks = ThreadPoolExecutor(_CHECKS, "enginebay-checks")
    try:
        yield
    finally:
        app.state.checks.shutdown(wait=False, cancel_futures=True)
        app.state.downloads.close()
        loading.cancel()
        watching.cancel()
        app.state.watch.close()
        await asyncio.gather(loading, watching, return_exceptions=True)
        await app.state.models.close()
        if app.state.captures:
            await asyncio.to_thread(app.state.captures.close)


async def _serving_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(told(http, error))


async def _invalid_body(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(_first_problem(error))


def _first_problem(error: RequestValidationError) -> InvalidRequestError:
    problems = error.errors()
    first = problems[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return InvalidRequestError(f"the body is not valid JSON: {reason}")
    param = _place(first, error.body)
    if not param:
        return InvalidRequestError(
            "the body must be a JSON object, sent with the header Content-Type: application/json"
        )
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequestError(f"{param}: {message}", param=param)


def _place(problem: Mapping[str, Any], body: Any) -> str:
    """Where in the body a problem is, as `messages[0].role`.

    pydantic's `loc` also names the branches of unions, which are not there.
    """
    path = problem["loc"][1:]
    place: list[str | int] = []
    for part in path:
        if _has(body, part):
            place.append(part)
            body = body[part]
    if path and problem["type"] == "missing":
        place.append(path[-1])
    return key_text(tuple(place))


def _has(body: Any, part: str | int) -> bool:
    if isinstance(body, dict):
        return part in body
    return isinstance(body, list) and isinstance(part, int) and part < len(body)


async def _http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer: ServingError = InvalidRequestError(str(error.detail))
    match error.status_code:
        case 404:
            answer = InvalidRequestError(f"there is no route {http.method} {http.url.path}")
        case 405:
            answer = InvalidRequestError(f"{http.url.path} does not take {http.method}")
        case 413:
            answer = RequestTooLargeError(str(error.detail))
        case 400 if isinstance(error.__cause__, UnicodeDecodeError):
            answer = InvalidRequestError(f"the body is not valid UTF-8: {error.__cause__}")
        case 400 if isinstance(error.__cause__, RecursionError):
            answer = InvalidRequestError("the body is nested too deeply")
        case 400 if isinstance(error.__cause__, ValueError):
            answer = InvalidRequestError(f"the body cannot be read: {error.__cause__}")
    return JSONResponse(answer.body(), error.status_code, headers=error.headers)


async def _client_left(http: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx's code for the log


async def _unexpected(http: Request, error: Exception) -> Response:
    return JSONResponse(ServingError("an internal error; see the server's log").body(), 500)
