"""The one place that knows of the proxies before the server; all others see plain requests."""

from collections.abc import Awaitable
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from enginebay.config.listening import UNIX
from enginebay.config.schema import ServerConfig
from enginebay.server.access.forwarded import TrustedProxies
from enginebay.server.access.guard import needed
from enginebay.server.access.hosts import is_allowed

_SOCKET = {"http": "ws", "https": "wss"}
"""The schemes of WebSockets."""


class BehindProxy:
    """ASGI middleware, before all others but `Slashes`: takes `server.root_path` off paths, where
    it was not taken off already, and puts it before the `Location` of answers; client, scheme and
    host are what a trusted proxy says.

    `request.state.prefix` is the path below which clients see the server, for links.
    """

    def __init__(self, app: ASGIApp, server: ServerConfig) -> None:
        self._app = app
        self._server = server
        self._root = server.root_path or ""
        self._proxies = TrustedProxies(server.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on as it would be without proxies."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        peer = _peer(scope)
        said = self._proxies.read(peer, scope["headers"])
        if said.client or peer == UNIX:
            scope["client"] = (said.client or peer, 0)
        if said.scheme:
            scope["scheme"] = said.scheme if scope["type"] == "http" else _SOCKET[said.scheme]
        headers = MutableHeaders(scope=scope)
        # Under a name that is refused a page may have made up the other one, too.
        believed = needed(self._server, scope) == "required"
        if said.host and (believed or is_allowed(headers.get("host", ""), self._server)):
            headers["host"] = said.host
        prefix = self._root or said.prefix or ""
        scope.setdefault("state", {})["prefix"] = prefix
        if self._root and f"{scope['path']}/".startswith(f"{self._root}/"):
            scope["path"] = scope["path"].removeprefix(self._root)
            scope["raw_path"] = quote(scope["path"]).encode()

        def located(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start" and 300 <= message["status"] < 400:
                answered = MutableHeaders(scope=message)
                if "location" in answered:
                    origin = str(HTTPConnection(scope).base_url).rstrip("/")
                    place = answered["location"].removeprefix(origin)
                    own = place.startswith("/") and not place.startswith("//")
                    answered["location"] = f"{prefix}{place}" if own else answered["location"]
            return send(message)

        await self._app(scope, receive, located)


def _peer(scope: Scope) -> str:
    """The address of who has connected, empty if it has left already, or `unix`."""
    if (server := scope.get("server")) and server[1] is None:
        return UNIX
    client = scope.get("client")
    return client[0] if client else ""
