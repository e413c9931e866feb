"""An error as an answer."""

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from core.contract.errors import ServingError

_RETRY_AFTER = 2
"""Seconds after which clients should retry, by default."""


def error_response(error: ServingError, body: Mapping[str, Any]) -> JSONResponse:
    """The response of an error, with this body and the headers that belong to its status."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after or _RETRY_AFTER)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, error.status, headers=headers)
