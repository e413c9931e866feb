"""Who may send a request at all, decided by its headers before its body is read."""

from collections.abc import Sequence
from typing import Literal

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.chat.answer.running import RunningRequest
from core.config.keys import Key
from core.config.schema import ServerConfig
from core.contract.errors import AuthenticationError, ServingError
from core.server.access.forwarded import came_through_proxy
from core.server.access.hosts import check_host, check_origin, others_can_connect
from core.server.access.key_store import KeyStore
from core.server.access.keys import find_key, sent_keys
from core.server.paths import Paths
from core.server.usage.key_use import KeyUses

Needed = Literal["required", "admin", "none"]

_HEALTH = ("/health", "/health/live", "/health/ready", "/livez", "/readyz")

PUBLIC = frozenset(
    (
        "",  # `server.root_path` without a slash at its end, which redirects to "/"
        "/",
        *_HEALTH,
        *(f"/v1{path}" for path in _HEALTH),
        "/metrics",  # which has a setting of its own
        "/v1/metrics",
        "/.well-known/serviceinfo",
        "/docs",
        "/openapi.json",
    )
)
"""Paths that need no key: browsers can send none with a page, nor can what looks after servers."""

PUBLIC_FOLDERS = ("/page/", "/docs/assets/")

UNCOUNTED = (
    *("/token/encode", "/token/decode", "/tokenize", "/detokenize", "/apply-template"),
    *("/count_tokens", "/input_tokens", "/extra/tokencount"),
    *("/extra/abort", "/extra/generate/check", "/api/show"),
)
"""Cheap routes that frontends call for every message are not limited."""


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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        running: RunningRequest = scope["state"]["running"]
        try:
            running.key = self._admit(scope)
            use = running.account = self._uses.of(running.key)
            running.free = not self._counts(scope)
            if running.key and not running.free:
                await running.hold(use.counted(running.key))
        except ServingError as error:
            answer = self._paths.error_response(scope, error)
            await answer(scope, receive, self._with_limits(running.key, send))
            return
        await self._app(scope, receive, self._with_limits(running.key, send))

    def _admit(self, scope: Scope) -> Key | None:
        """The request's key; None if it has none and needs none."""
        sent = sent_keys(scope["headers"])
        who = needed(self._server, scope)  # which a reload of the config may change
        key = find_key(sent, self._keys.known()) if sent and who != "none" else None
        if key or self._is_public(scope):
            return key
        if who == "required":
            raise AuthenticationError(self._lacking(sent))
        headers = dict(scope["headers"])
        check_host(headers.get(b"host", b"").decode("latin-1"), self._server)
        check_origin(headers, self._server)
        return None

    def _lacking(self, sent: Sequence[bytes]) -> str:
        if sent:
            return "this API key is not valid"
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
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(use.headers(key))
            await send(message)

        return send_with_limits

    def _is_public(self, scope: Scope) -> bool:
        method, path = scope["method"], scope["path"]
        public = path in PUBLIC or path.startswith(PUBLIC_FOLDERS)
        return public or self._paths.is_public(method, path)

    def _counts(self, scope: Scope) -> bool:
        """Whether a request counts towards the limits of its key; reading is free."""
        method, path = scope["method"], scope["path"]
        free = method in ("GET", "HEAD") or path.endswith(UNCOUNTED)
        return not free and not self._paths.is_uncounted(method, path)
