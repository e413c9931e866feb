"""Counts every request and writes its access log line."""

import logging
import time
from collections.abc import Awaitable
from urllib.parse import quote

from enginebay.chat.answer.running import RunningRequest
from enginebay.server.http.asgi import STARTS, App, Message, Receive, Scope, Send
from enginebay.server.observe.logs import request_of
from enginebay.server.observe.prometheus import Metrics

logger = logging.getLogger("enginebay.access")

_QUIET = ("/health", "/livez", "/readyz", "/metrics", "/stats", "/requests", "/page/")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class ObserveRequests:
    """ASGI middleware, before all others that may answer: counts responses and logs each.

    What machines poll (`/health`, `/metrics` and the page's requests) is logged at debug level. A
    WebSocket is counted and logged when it ends.
    """

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; what is logged meanwhile is about it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 500  # of one that raises before it is answered

        def observed(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] in STARTS:
                status = message.get("status", 101)
            return send(message)

        state = scope.setdefault("state", {})
        about = request_of.set(state)
        try:
            await self._app(scope, receive, observed)
        finally:
            self._note(scope, status, time.monotonic() - began, state.get("running"))
            request_of.reset(about)

    def _note(
        self, scope: Scope, status: int, seconds: float, running: RunningRequest | None
    ) -> None:
        sent = scope.get("method", "GET")  # of a WebSocket
        method = sent if sent in _METHODS else "other"
        route = _route(scope)
        self._metrics.count_response(method, route, status, running.model if running else None)
        quiet = method in ("GET", "HEAD") and route.startswith(_QUIET)
        level = logging.DEBUG if quiet else logging.INFO
        if not logger.isEnabledFor(level):
            return
        path = quote(scope["path"])[:500]
        client = scope.get("client")
        address = client[0] if client else "-"  # it has left before it could be seen
        fields: dict[str, object] = {
            "client": address,
            "method": sent,
            "path": path,
            "status": status,
            "duration_s": round(seconds, 4),
        }
        text = f"{address} {sent} {path} {status} in {seconds:.3f} s"
        if running and running.counter and running.counter.time_to_first_token is not None:
            usage, ttft = running.counter.usage, running.counter.time_to_first_token
            fields["ttft_s"] = round(ttft, 4)
            fields["prompt_tokens"] = usage.prompt_tokens
            fields["completion_tokens"] = usage.completion_tokens
            text += (
                f", first token after {ttft:.3f} s, {usage.prompt_tokens} prompt and "
                f"{usage.completion_tokens} completion tokens"
            )
        if running and running.ended:
            fields["ended"] = running.ended
            text += f", {running.ended}"
        logger.log(level, "%s", text, extra=fields)


def _route(scope: Scope) -> str:
    """The path of the route that answered, with what it is below: `/api`, but not `/v1`."""
    route = scope.get("route")
    if route is None:
        return "other"
    asked = scope["path"]
    starts = (at for at, sign in enumerate(asked) if sign == "/")
    at = next((at for at in starts if route.path_regex.match(asked[at:])), 0)
    return f"{asked[:at].removeprefix('/v1')}{route.path}"
