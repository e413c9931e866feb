"""Routes that read JSON bodies, and what they make of a body, without holding up the event loop."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders

from enginebay.chat.plan.strictness import accept_ignored
from enginebay.chat.schemas.read_body import validator_of
from enginebay.server.body_reader import SMALL
from enginebay.server.http.headers import add_ignored
from enginebay.server.services import services

_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


class BodyRoute(APIRoute):
    """A route whose parameter `body`, a `Sent[...]`, is read by the server's `BodyReader`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        kind = get_type_hints(self.endpoint, include_extras=True).get("body")
        if kind is None:
            return handler
        validate = validator_of(kind)

        async def read(request: Request) -> Response:
            reading = _Reading(request, validate)
            response = await handler(reading)
            add_ignored(response, reading.changed)
            return response

        return read


class _Reading(Request):
    """A request whose `json()` is its validated body; `changed` has paths of half characters."""

    def __init__(self, request: Request, validate: Callable[[Any], Any]) -> None:
        super().__init__(request.scope, request.receive)
        self._validate = validate
        self.changed: list[str] = []

    async def json(self) -> Any:
        body = await self.body()
        self.state.has_large_body = len(body) > SMALL
        try:
            body_read, self.changed = await services(self).bodies.read(body, self._validate)
            accept_ignored(self.changed, services(self).config.server)
            return body_read
        finally:
            self.state.release_body()


async def converted(
    http: Request, convert: Callable[[*_Given], _Result], *args: *_Given
) -> _Result:
    """Return what `convert` makes of a body, computed on the reader's thread if that is large."""
    if http.state.has_large_body:
        return await services(http).bodies.run(convert, *args)
    return convert(*args)


class JsonRoute(BodyRoute):
    """Reads a body as JSON whatever its type: `curl -d` says that it is a form.

    Web pages can send forms without asking first; `check_origin` keeps them out.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def read_as_json(request: Request) -> Response:
            MutableHeaders(scope=request.scope)["content-type"] = "application/json"
            return await handler(request)

        return read_as_json
