"""Turns any exception into an error response of the API."""

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from enginebay.chat.schemas.read_body import first_problem
from enginebay.contract.errors import InvalidRequestError, RequestTooLargeError, ServingError
from enginebay.server.access.disclosure import visible_error
from enginebay.server.http.respond import ClientLeft
from enginebay.server.services import services

logger = logging.getLogger(__name__)


def add_error_handlers(app: FastAPI) -> None:
    """Answer with our errors, FastAPI's, and whatever else is raised."""
    app.add_exception_handler(ServingError, _serving_error)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(WebSocketRequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientLeft, _client_left)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(RecursionError, _too_deep)
    app.add_exception_handler(Exception, _unexpected)


async def _serving_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    if http.scope["type"] == "websocket":
        raise visible_error(http, error)  # `WebSocketRequest` refuses it or closes it
    return _response(http, visible_error(http, error))


async def _invalid_body(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | WebSocketRequestValidationError)
    found, body = error.errors(), getattr(error, "body", None)
    value = dict(http.query_params) if found[0]["loc"][0] == "query" else body
    problems = [{**each, "loc": each["loc"][1:]} for each in found]  # without "body" or "query"
    return _response(http, first_problem(problems, value))


async def _http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer: ServingError = InvalidRequestError(str(error.detail))
    match error.status_code:
        case 400 if isinstance(error.__cause__, ServingError):  # of `BodyReader`
            return await _serving_error(http, error.__cause__)
        case 404:
            method = http.scope.get("method", "GET")  # of a WebSocket
            answer = InvalidRequestError(f"there is no route {method} {http.url.path}")
        case 405:
            answer = InvalidRequestError(f"{http.url.path} does not allow {http.method}")
        case 413:
            answer = RequestTooLargeError(str(error.detail))
        case 400 if isinstance(error.__cause__, UnicodeDecodeError):
            answer = InvalidRequestError(f"the body is not valid UTF-8: {error.__cause__}")
        case 400 if isinstance(error.__cause__, RecursionError):
            return await _too_deep(http, error.__cause__)
        case 400 if isinstance(error.__cause__, ValueError):
            answer = InvalidRequestError(f"the body cannot be read: {error.__cause__}")
    return services(http).paths.error_response(
        http.scope, answer, status=error.status_code, headers=error.headers
    )


async def _too_deep(http: Request, error: Exception) -> Response:
    """Only what a body holds is nested as deeply as the client likes."""
    logger.warning("%s %s: a body that is nested too deeply", http.method, http.scope["path"])
    return _response(http, InvalidRequestError("the body is nested too deeply"))


async def _client_left(http: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx's code for the log


async def _unexpected(http: Request, error: Exception) -> Response:
    services(http).plugins.blame(error)  # it is logged by whoever calls this
    return _response(http, ServingError("an internal error; see the server's log"))


def _response(http: Request, error: ServingError) -> Response:
    return services(http).paths.error_response(http.scope, error)
