"""Routes of plugins: what a handler gets, and what it may answer."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from enginebay.contract.errors import InvalidRequestError, ServingError
from enginebay.contract.registers import Register
from enginebay.contract.types import TokenCounts, Update

Access = Literal["key", "admin", "anyone"]
"""Who may call a route: whoever may call the server's own, admins only, or everybody."""

ErrorShape = Callable[[ServingError], Mapping[str, Any]]
"""An error as the JSON object that clients of an API expect."""

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\xa0-\xff]*")  # RFC 9110, 5
_PART = re.compile(r"{([a-zA-Z_][a-zA-Z0-9_]*)(?::(?:str|path|int|float|uuid))?}")
_FRAMING = ("content-length", "transfer-encoding")


class GeneratedAnswer(ABC):
    """An answer that runs when it is read, once: as updates, as chunks, or whole.

    Closing the generator that reads it aborts it. Errors are `ServingError`s; those that clients
    can do something about come before the first item.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """Its id, by which it can be cancelled while it runs."""

    @property
    @abstractmethod
    def model(self) -> str:
        """The name of the model that answers."""

    @property
    @abstractmethod
    def ignored(self) -> Sequence[str]:
        """Fields of the body that have no effect. The response names them in a header by itself."""

    @property
    @abstractmethod
    def usage(self) -> TokenCounts:
        """The counts so far; complete when it has been read."""

    @abstractmethod
    def updates(self) -> AsyncGenerator[Update, None]:
        """What its choices gain: content, reasoning and tool calls, separated."""

    @abstractmethod
    def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The same as chunks of OpenAI's API; the body needs `stream: true` for that."""

    @abstractmethod
    async def whole(self) -> dict[str, Any]:
        """All of it, as one answer of OpenAI's API."""


class RouteRequest(ABC):
    """A request to a plugin's route, whose API key has been checked, and what can be run for it.

    `headers` have lower-case names. `path_params` are the parts of the path in braces. `key`: the
    name of its API key, None where it needs none. `id` is its `X-Request-Id`.

    What is run takes bodies of the server's own routes as Python values, and raises the
    `ServingError`s of these; not caught, they become the response. It runs with the limits and the
    priority of the request's key, is counted and logged, and ends when the client leaves.
    """

    id: str
    method: str
    path: str
    path_params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    key: str | None
    body: bytes

    def json(self) -> Any:
        """The body as JSON; `InvalidRequestError` if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the body is not valid JSON: {error}") from error

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object; `InvalidRequestError` if it is none."""
        value = self.json()
        if not isinstance(value, dict):
            raise InvalidRequestError("the body must be a JSON object")
        return value

    @abstractmethod
    def models(self) -> list[str]:
        """The models that its key may use, the default one first."""

    @abstractmethod
    async def chat(self, body: Mapping[str, Any], *, id: str | None = None) -> GeneratedAnswer:
        """The answer to a body of `/v1/chat/completions`; `id` replaces the usual one."""

    @abstractmethod
    async def complete(self, body: Mapping[str, Any], *, id: str | None = None) -> GeneratedAnswer:
        """The answer to a body of `/v1/completions`; `id` replaces the usual one."""

    @abstractmethod
    async def embed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What `/v1/embeddings` answers to a body."""

    @abstractmethod
    async def rerank(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What `/v1/rerank` answers to a body with `documents`."""

    @abstractmethod
    async def score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What `/v1/score` answers to a body."""

    @abstractmethod
    async def classify(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What `/v1/classify` answers to a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteResponse:
    """What a route answers, if that is more than a JSON value.

    `body`: text, bytes, a value that is written as JSON, or a generator of what is sent as it
    comes; its first item is awaited before the status is sent, so that an error up to there has a
    status of its own. `media_type`: by default what goes with the body, for a generator
    `text/event-stream`. `ping`: sent whenever a generator has nothing for a while, by default a
    comment in event streams and nothing in others. A `ServingError` in mid-stream becomes an event,
    or a line of `application/x-ndjson`; it ends other streams. In JSON, NaN and infinity are null.
    Responses of status 204 and 304 have no body.

    `ValueError` for a status or a header that cannot be sent.
    """

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str | None = None
    ping: bytes | None = None

    def __post_init__(self) -> None:
        if self.status not in range(200, 600):
            raise ValueError(f"{self.status!r} is not the status of a response")
        for name, value in (*self.headers.items(), ("content-type", self.media_type or "")):
            if not isinstance(value, str) or not _HEADER.fullmatch(f"{name}: {value}"):
                raise ValueError(f"{name!r}: {value!r} is not a header that can be sent")
            if name.lower() in _FRAMING:
                raise ValueError(f"the header {name!r} is the server's to send")


Handler = Callable[[RouteRequest], Awaitable[Any]]
"""Answers a request with a value that is written as JSON, or a `RouteResponse`."""


@dataclass(frozen=True, slots=True)
class Route:
    """A registered route; for its fields see `RouteRegister`."""

    method: str
    path: str
    handler: Handler
    access: Access = "key"
    counted: bool = True
    example: Mapping[str, Any] | None = None


class RouteRegister(Register[Route]):
    """`register("POST", "/translate", handler)`, on the event loop of the server.

    Parts of a path in braces match anything but a slash, and with `{name:path}` that, too. The
    handler's docstring is the description in `/docs`. `access`: who may call it. `counted`: whether
    calls count towards the limits of a key; GET never does. `example`: a body, for `/docs` and
    `check_routes`. `ValueError` or `TypeError` for a route that cannot be one.
    """

    def __init__(self) -> None:
        super().__init__("route", Route)
        self.error_shapes: Register[ErrorShape] = Register("shape of errors")

    def __call__(  # type: ignore[override]
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        access: Access = "key",
        counted: bool = True,
        example: Mapping[str, Any] | None = None,
    ) -> None:
        name = f"{method} {path}"
        if method not in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            methods = "GET, POST, PUT, PATCH or DELETE"
            raise ValueError(f"the method of the route {name!r} must be {methods}")
        if not path.startswith("/"):
            raise ValueError(f"the path of the route {name!r} must begin with a slash")
        _require_parts(name, path)
        if not callable(handler):
            raise TypeError(f"the route {name!r} must be handled by a function, not {handler!r}")
        if access not in ("key", "admin", "anyone"):
            raise ValueError(f"the access of the route {name!r} must be key, admin or anyone")
        super().__call__(name, Route(method, path, handler, access, counted, example))

    def errors(self, prefix: str, shape: ErrorShape) -> None:
        """Answer with errors of this shape where a path begins with `prefix`, unknown routes too.

        Of several prefixes the longest counts; where none matches, errors have OpenAI's shape.
        `ValueError` for a prefix without a leading slash.
        """
        if not prefix.startswith("/"):
            raise ValueError(f"the prefix {prefix!r} must begin with a slash")
        self.error_shapes(prefix, shape)


def _require_parts(name: str, path: str) -> None:
    """Raise a `ValueError` if the parts of a path in braces cannot be told apart."""
    if re.search(r"[{}]", _PART.sub("", path)):
        raise ValueError(
            f"the route {name!r} has braces that are no part: write {{name}} or {{name:path}}"
        )
    names = [found[1] for found in _PART.finditer(path)]
    if twice := [each for each in names if names.count(each) > 1]:
        raise ValueError(f"the route {name!r} has two parts with the name {twice[0]!r}")


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event with JSON data, for the streams of routes.

    `ValueError` for NaN and infinity, which JSON does not have.
    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    line = f"data: {json.dumps(data, allow_nan=False)}\n\n"
    return (f"event: {name}\n{line}" if name else line).encode()
