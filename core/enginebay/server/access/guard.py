"""Who may send a request at all, decided by its headers before its body is read."""

from collections.abc import Sequence
from typing import Literal

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from enginebay.chat.answer.running import RunningRequest
from enginebay.config.keys import Key
from enginebay.config.schema import ServerConfig
from enginebay.contract.errors import AuthenticationError, ServingError
from enginebay.server.access.forwarded import came_through_proxy
from enginebay.server.access.hosts import check_host, check_origin, others_can_connect
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import find_key, sent_keys
from enginebay.server.http.asgi import STARTS
from enginebay.server.paths import Paths
from enginebay.server.usage.key_use import KeyUses

Needed = Literal["required", "admin", "none"]

SMALL = (
    *("/token/encode", "/token/decode", "/tokenize", "/detokenize", "/apply-template"),
    *("/count_tokens", "/input_tokens", "/extra/tokencount"),
)
"""Routes that frontends call for every message have limits of their own."""

UNCOUNTED = ("/extra/abort", "/extra/generate/check", "/api/show")
"""Cheap routes are not limited."""


def needed(server: ServerConfig, scope: Scope | None = None) -> Needed:
    """Who needs a key: all, admins, or nobody. With `auto`, all do if other machines can connect,
    be it through a proxy of which only the request `scope` tells, or the config has keys.
    """
    if server.auth != "auto":
        return server.auth
    others = others_can_connect(server) or (scope is not None and came_through_proxy(scope))
    return "required" if server.api_keys or others else "admin"


class Guard:
    """ASGI middleware: a request with its key, or a refusal.

    Everything needs a key that is not public, so that no route can be forgotten.
    """

    def __init__(
        self,
        app: ASGIApp,
        server: ServerConfig,
        keys: KeyStore,
        paths: Paths,
        uses: KeyUses,
    ) -> None:
        self._app = app
        self._server = server
        self._keys = keys
        self._paths = paths
        self._uses = uses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with an error."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        running: RunningRequest = scope["state"]["running"]
        try:
            who = needed(self._server, scope)  # which a reload of the config may change
            key = running.key = self._admit(scope, who)
            running.is_admin = who == "none" or (key is not None and key.role == "admin")
            running.shares_prefixes = self._server.share_prefixes
            use = running.account = self._uses.of(running.key)
            running.free = not self._counts(scope)
            if running.key and not running.free:
                await running.hold(use.counted(running.key))
            elif running.key and scope["method"] == "POST" and scope["path"].endswith(SMALL):
                await running.hold(use.counted_small(running.key))
        except ServingError as error:
            answer = self._paths.error_response(scope, error)
            await answer(scope, receive, self._with_limits(running.key, send))
            return
        await self._app(scope, receive, self._with_limits(running.key, send))

    def _admit(self, scope: Scope, who: Needed) -> Key | None:
        """The request's key; None if it has none and needs none."""
        sent, known = sent_keys(scope["headers"]), self._keys.known()
        if sent and who != "none" and (key := find_key(sent, known)):
            return key
        headers = dict(scope["headers"])
        public = self._paths.is_public(scope.get("method", ""), scope["path"])
        if not public and (who == "required" or (who == "admin" and _is_wrong(sent, known))):
            raise AuthenticationError(self._lacking(sent, who))
        if who != "required":
            check_host(headers.get(b"host", b"").decode("latin-1"), self._server)
        # Pages may read all that a WebSocket sends, where CORS keeps answers of HTTP from them.
        if scope["type"] == "websocket" or (who != "required" and not public):
            check_origin(headers, self._server)
        return None

    def _lacking(self, sent: Sequence[bytes], who: Needed) -> str:
        if sent:
            if who == "required":
                return "this API key is not valid"
            return "this API key is not valid; send a valid key, or none at all"
        said = "no API key was sent; use the header 'Authorization: Bearer KEY'"
        if needed(self._server) == "required":
            return said
        return f"{said}, which is needed through a proxy unless the config sets `server.auth`"

    def _with_limits(self, key: Key | None, send: Send) -> Send:
        """`send`, which also adds the rate-limit headers."""
        if key is None or not key.has_rates:
            return send
        use = self._uses.of(key)

        async def send_with_limits(message: Message) -> None:
            if message["type"] in STARTS:
                MutableHeaders(scope=message).update(use.headers(key))
            await send(message)

        return send_with_limits

    def _counts(self, scope: Scope) -> bool:
        """Whether a request counts towards the limits of its key; reading is free."""
        if scope["type"] == "websocket":
            return True
        method, path = scope["method"], scope["path"]
        free = method in ("GET", "HEAD") or path.endswith((*SMALL, *UNCOUNTED))
        return not free and not self._paths.is_uncounted(method, path)


def _is_wrong(sent: Sequence[bytes], known: Sequence[Key]) -> bool:
    """Whether keys were sent, none of them known, although the server has keys for users.

    Without keys for users, clients that insist on a key can send anything.
    """
    return bool(sent) and any(key.role == "user" for key in known)
