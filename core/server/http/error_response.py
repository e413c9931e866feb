"""An error as an answer."""

from fastapi.responses import JSONResponse

from core.contract.errors import ServingError

_RETRY_AFTER = 2
"""Seconds after which clients should retry, by default."""


def error_response(error: ServingError) -> JSONResponse:
    """OpenAI's error object, and the headers that belong to its status."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after or _RETRY_AFTER)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.body(), error.status, headers=headers)
