"""Every error this server answers with, in one tree, independent of any web framework.

    ServingError 500
    ├── InvalidRequestError 400
    │   ├── ContextLengthExceededError
    │   ├── PreviousResponseNotFoundError
    │   └── UnsupportedParameterError
    │       └── UnsupportedModalityError
    ├── AuthenticationError 401
    ├── PermissionDeniedError 403
    ├── ModelNotFoundError 404
    ├── WrongModelError 405
    ├── RequestNotFoundError 404
    ├── ResponseNotFoundError 404
    ├── NotReasoningError 409
    ├── RequestTooLargeError 413
    │   └── HeadersTooLargeError 431
    ├── RateLimitError 429
    │   └── TokenLimitError
    ├── QueueFullError 429
    ├── BackendUnavailableError 503
    │   └── ModelFailedError
    ├── RequestCancelledError 499
    │   ├── ServerStoppingError 503
    │   └── KeyRevokedError 401
    ├── OutOfMemoryError 503
    └── EngineDeadError 503
        └── ModelUnloadedError

On the wire each becomes `{"error": {"message", "type", "param", "code"}}`, the shape of
https://platform.openai.com/docs/guides/error-codes.
"""

from typing import Any, ClassVar

_LONGEST_MESSAGE, _LONGEST_PARAM = 4000, 200  # characters; both may quote what was sent


class ServingError(Exception):
    """A request failed; `message` is written for the person who sent it.

    `retry_after`: seconds after which it may succeed, where that is known.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = "internal_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        self.message = shortened(message, _LONGEST_MESSAGE)
        super().__init__(self.message)
        self.param = param
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.param, self.retry_after))

    @property
    def shown_message(self) -> str:
        """The message as clients get it in any API: not too long, and encodable."""
        return encodable(shortened(self.message, _LONGEST_MESSAGE))

    @property
    def shown_param(self) -> str | None:
        """The same of the param."""
        return self.param and encodable(shortened(self.param, _LONGEST_PARAM))

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.shown_message,
                "type": self.type,
                "param": self.shown_param,
                "code": self.code,
            }
        }


def encodable(text: str) -> str:
    """Escape lone surrogates, which have no UTF-8 form, in text of clients and plugins."""
    return text.encode(errors="replace").decode()


def shortened(text: str, limit: int) -> str:
    """Its beginning and end, if it is longer than that."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"


def _rebuild(
    cls: type[ServingError], message: str, param: str | None, retry_after: int | None
) -> ServingError:
    return cls(message, param=param, retry_after=retry_after)


class InvalidRequestError(ServingError):
    """The request itself is wrong; sending it again will not help."""

    status = 400
    type = "invalid_request_error"
    code: ClassVar[str | None] = None


class ContextLengthExceededError(InvalidRequestError):
    """The prompt leaves no room in the model's context.

    `tokens`: those of the prompt, at least; `maximum`: how many it may have. None if unknown.
    """

    code = "context_length_exceeded"
    tokens: int | None = None
    maximum: int | None = None


class NotOfferedError(InvalidRequestError):
    """This server does not have a route of an API; the message names another way."""

    status = 404


class PreviousResponseNotFoundError(InvalidRequestError):
    """The response that a request goes on from is not stored, or is another key's."""

    code = "previous_response_not_found"


class UnsupportedParameterError(InvalidRequestError):
    """The request asks for something this server or engine cannot do."""

    code = "unsupported_parameter"


class UnsupportedModalityError(UnsupportedParameterError):
    """The request has a picture, a sound or a video, and the model does not take it."""

    code = "unsupported_modality"


class SchemaError(ValueError):
    """A JSON Schema that cannot be enforced; `path` says where in it, as a JSON pointer."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason}, at {path or 'the top'}")
        self.path = path
        self.reason = reason


class AuthenticationError(ServingError):
    """No API key, or one that is not known."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDeniedError(ServingError):
    """The caller may not do this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class RateLimitError(ServingError):
    """The API key has reached its rate limit."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"


class TokenLimitError(RateLimitError):
    """The API key has used the tokens of a minute, or of a day."""

    type = "tokens"


class ModelNotFoundError(ServingError):
    """The request names a model that is not served."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class WrongModelError(ServingError):
    """The model is of a kind that does not do what the route is for."""

    status = 405
    type = "invalid_request_error"
    code = "wrong_model"


class RequestNotFoundError(ServingError):
    """No such request is being answered."""

    status = 404
    type = "invalid_request_error"
    code = "request_not_found"


class ResponseNotFoundError(ServingError):
    """No such response, or item of one, is stored for this key."""

    status = 404
    type = "invalid_request_error"
    code = "response_not_found"


class NotReasoningError(ServingError):
    """The thought of a request cannot be ended: it is not thinking, or nobody can end it."""

    status = 409
    type = "invalid_request_error"
    code = "not_reasoning"


class RequestTooLargeError(ServingError):
    """The body is larger than the config allows."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class HeadersTooLargeError(RequestTooLargeError):
    """The headers are too large."""

    status = 431


class QueueFullError(ServingError):
    """Too many requests are waiting; try again later."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class RequestCancelledError(ServingError):
    """The request was cancelled through `POST /v1/requests/{id}/cancel`.

    The status is nginx's for requests that are closed from the client's side; OpenAI's clients do
    not send such a request again.
    """

    status = 499
    type = "request_cancelled"
    code = "request_cancelled"


class ServerStoppingError(RequestCancelledError):
    """The server is being stopped, and takes no further requests."""

    status = 503
    type = "server_error"
    code = "server_stopping"


class KeyRevokedError(RequestCancelledError):
    """The API key was removed, or may no longer use the model, while its request was answered.

    Unlike others that are cancelled, an answer that has begun ends with this error.
    """

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class BackendUnavailableError(ServingError):
    """The model is not loaded: still loading, failed, or its library is missing."""

    status = 503
    type = "server_error"
    code = "backend_unavailable"


class ModelFailedError(BackendUnavailableError):
    """The model could not be loaded; the message says why, and may contain file paths."""


class OutOfMemoryError(ServingError):
    """There was not enough memory to compute this request; others go on."""

    status = 503
    type = "server_error"
    code = "out_of_memory"


class EngineDeadError(ServingError):
    """The engine that ran this request is gone."""

    status = 503
    type = "server_error"
    code = "engine_dead"


class ModelUnloadedError(EngineDeadError):
    """The server itself closed the engine, so running answers end with this error."""

    code = "model_unloaded"
