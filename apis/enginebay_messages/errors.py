"""Errors as Anthropic's clients know them."""

from collections.abc import Mapping
from typing import Any

from enginebay.contract.errors import ContextLengthExceededError, ServingError

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""https://docs.claude.com/en/api/errors; overloaded is 529 there, which proxies do not know."""


def anthropic_error(error: ServingError, status: int) -> Mapping[str, str]:
    """Anthropic's `error`; it has no place for the field that is wrong but the message."""
    kind = "invalid_request_error" if 400 <= status < 500 else "api_error"
    message, param = error.shown_message, error.shown_param
    if isinstance(error, ContextLengthExceededError) and error.tokens is not None:
        # Clients read both numbers, to shorten the conversation.
        message = f"prompt is too long: {error.tokens} tokens > {error.maximum} maximum"
    elif param and param not in message:
        message = f"{param}: {message}"
    return {"type": _ANTHROPIC_TYPES.get(status, kind), "message": message}


def error_body(error: ServingError, status: int, request_id: str) -> Mapping[str, Any]:
    """The body of a response that is an error."""
    return {
        "type": "error",
        "error": anthropic_error(error, status),
        "request_id": request_id,
    }
