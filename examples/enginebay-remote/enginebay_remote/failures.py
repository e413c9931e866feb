"""What goes wrong at the remote server, as errors of this one."""

from typing import Any

from enginebay import (
    BackendUnavailableError,
    ContextLengthExceededError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLargeError,
    ServingError,
    UnsupportedParameterError,
)

NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer that is none ends with."""

TRANSIENT = frozenset({429, 502, 503, 504})
"""Statuses with which a request may be tried again."""


class NotFoundError(BackendUnavailableError):
    """The server has no such route, or no such model."""


class UnreachableError(BackendUnavailableError):
    """There was no connection to the server."""


class SilentError(BackendUnavailableError):
    """The server was connected, and did not answer in time."""


def is_of_request(error: ServingError) -> bool:
    """Whether another server would say the same: something is wrong with the request."""
    return isinstance(error, InvalidRequestError | RequestTooLargeError)


def refusal(server: str, status: int, payload: Any, retry_after: int | None = None) -> ServingError:
    """The error for an answer that is none of a `server`; `retry_after`: seconds, as it says.

    What is wrong with the request is the client's to mend, all else is for whoever keeps the
    servers: a key that the remote does not take is none that the client sent.
    """
    error = payload.get("error", payload) if isinstance(payload, dict) else {}
    if not isinstance(error, dict):
        error = {"message": str(error)}
    message = str(error.get("message") or error.get("detail") or f"status {status}")
    param = error.get("param") if isinstance(error.get("param"), str) else None
    kinds = {str(error.get("code")), str(error.get("type"))}
    said = f"{server}: {message}"
    if kinds & {"context_length_exceeded", "exceed_context_size_error"}:
        return ContextLengthExceededError(message, param=param)
    if "unsupported_parameter" in kinds:
        return UnsupportedParameterError(message, param=param)
    if status in (400, 422):
        return InvalidRequestError(message, param=param)
    if status == 413:
        return RequestTooLargeError(message)
    if status == 429:
        return QueueFullError(message, retry_after=retry_after)
    if status == 404:
        return NotFoundError(f"{said} (status {status})")
    if status in (401, 403):
        hint = "its key is the option `api_key`, or in the variable that `api_key_env` names"
        return BackendUnavailableError(f"{said} (status {status}); {hint}")
    if status in TRANSIENT or status < 500:
        return BackendUnavailableError(f"{said} (status {status})", retry_after=retry_after)
    return ServingError(said)


def status_of(event: Any) -> int:
    """The status of an error that came as an event, for want of a status line.

    vLLM and llama-server write it as `code`, others say what type of error it is.
    """
    error = event.get("error")
    error = error if isinstance(error, dict) else {}
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    types = {"invalid_request_error": 400, "rate_limit_error": 429, "BadRequestError": 400}
    known = {"backend_unavailable": 503, "engine_dead": 503, "model_unloaded": 503}
    return known.get(str(code)) or types.get(str(error.get("type"))) or 500
