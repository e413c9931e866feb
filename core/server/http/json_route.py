"""Routes whose clients do not say that their bodies are JSON."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders


class JsonRoute(APIRoute):
    """Reads a body as JSON whatever its type: `curl -d` says that it is a form.

    Web pages can send forms without asking first; `check_origin` keeps them out.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def read_as_json(request: Request) -> Response:
            MutableHeaders(scope=request.scope)["content-type"] = "application/json"
            return await handler(request)

        return read_as_json
