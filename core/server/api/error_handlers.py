"""Turns any exception into an error response of the API."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from core.config.problems import key_text
from core.contract.errors import InvalidRequestError, RequestTooLargeError, ServingError
from core.server.access.model_permissions import visible_error
from core.server.http.error_response import error_response
from core.server.http.respond import ClientLeft


def add_error_handlers(app: FastAPI) -> None:
    """Answer with our errors, FastAPI's, and whatever else is raised."""
    app.add_exception_handler(ServingError, _serving_error)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientLeft, _client_left)
    app.add_exception_handler(Exception, _unexpected)


async def _serving_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(visible_error(http, error))


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
            answer = InvalidRequestError(f"{http.url.path} does not allow {http.method}")
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
