"""Routes of plugins, with keys, limits, the request log, metrics and errors of every route."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import PydanticSerializationError, to_json

from enginebay.contract.errors import ServingError, encodable
from enginebay.contract.routes import Route, RouteRegister, RouteResponse
from enginebay.server.access.auth import require_admin
from enginebay.server.api.plugin_request import PluginRequest
from enginebay.server.http import sse
from enginebay.server.http.respond import or_client_leaves
from enginebay.server.paths import Paths
from enginebay.server.services import services

logger = logging.getLogger(__name__)

_NDJSON = "application/x-ndjson"
_WITHOUT_BODY = (204, 304)


def add_plugin_routes(app: FastAPI, routes: RouteRegister, paths: Paths) -> None:
    """Add the routes of plugins to an application that has all of its own."""
    paths.come_behind(list(app.routes))
    for name, route in routes.items():
        if paths.is_own(route.method, route.path):
            logger.warning("the route %s of a plugin is never called: the server has it", name)
            continue
        app.add_api_route(
            route.path,
            _endpoint(route),
            methods=[route.method],
            name=name,
            tags=["plugins"],
            summary=name,
            description=route.handler.__doc__ or "",
            openapi_extra=_request_body(route),
        )


def _endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(http: Request) -> Response:
        if route.access == "admin":
            await require_admin(http)
        asked = PluginRequest(http, await http.body())
        answer = await or_client_leaves(http, _handled(http, route, asked))
        empty = answer.status in _WITHOUT_BODY
        if isinstance(answer.body, AsyncGenerator) and not empty:
            return await _stream(http, route, asked, answer)
        content, media_type = (b"", None) if empty else _content(route, answer.body)
        return Response(
            content,
            answer.status,
            headers={**asked.response_headers, **answer.headers},
            media_type=answer.media_type or media_type,
        )

    return endpoint


async def _handled(http: Request, route: Route, asked: PluginRequest) -> RouteResponse:
    try:
        answer = await route.handler(asked)
    except ServingError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if _stops(error):
            raise
        raise _failed(http, route, asked, error) from error
    return answer if isinstance(answer, RouteResponse) else RouteResponse(body=answer)


def _content(route: Route, body: Any) -> tuple[bytes, str]:
    """What a body is on the wire, and its usual media type."""
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return encodable(body).encode(), "text/plain; charset=utf-8"
    try:
        return to_json(body, inf_nan_mode="null"), "application/json"
    except PydanticSerializationError as error:
        logger.error("route %s %s: %s", route.method, route.path, error)
        raise ServingError("this route's answer cannot be written as JSON; see the log") from error


async def _stream(
    http: Request, route: Route, asked: PluginRequest, answer: RouteResponse
) -> Response:
    media_type = answer.media_type or sse.MEDIA_TYPE
    pieces = _pieces(http, route, asked, answer.body, media_type)
    first = await or_client_leaves(http, anext(pieces, b""))
    return sse.EventStreamResponse(
        pieces,
        first=first,
        ping_interval=services(http).config.server.ping_interval,
        ping=answer.ping or (sse.PING if media_type == sse.MEDIA_TYPE else None),
        status=answer.status,
        headers={**asked.response_headers, **answer.headers},
        media_type=media_type,
    )


async def _pieces(
    http: Request,
    route: Route,
    asked: PluginRequest,
    body: AsyncGenerator[bytes | str, None],
    media_type: str,
) -> AsyncGenerator[bytes, None]:
    """What a handler's generator yields; an error in mid-stream as its last piece."""
    opened = False
    try:
        async with aclosing(body):
            async for piece in body:
                data = _encoded(piece)
                opened = True
                yield data
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if _stops(error):
            raise
        visible = error if isinstance(error, ServingError) else _failed(http, route, asked, error)
        if not opened or media_type not in (sse.MEDIA_TYPE, _NDJSON):
            raise visible from error
        said = to_json(services(http).paths.error_body(http.scope, visible))
        yield sse.data(said) if media_type == sse.MEDIA_TYPE else said + b"\n"


def _encoded(piece: bytes | str) -> bytes:
    if isinstance(piece, bytes | str):
        return encodable(piece).encode() if isinstance(piece, str) else piece
    raise TypeError(f"the generator of a route's body yields bytes or text, not {type(piece)}")


def _stops(error: BaseException) -> bool:
    """Whether it cancels this task, and not only one that the handler awaits."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _failed(
    http: Request, route: Route, asked: PluginRequest, error: BaseException
) -> ServingError:
    services(http).plugins.blame(error)
    logger.error("route %s %s failed", route.method, route.path, exc_info=error)
    return ServingError(f"request {asked.id} failed in a plugin; see the server's log")


def _request_body(route: Route) -> dict[str, Any] | None:
    """Its example in the OpenAPI document."""
    if route.example is None:
        return None
    return {"requestBody": {"content": {"application/json": {"example": dict(route.example)}}}}
