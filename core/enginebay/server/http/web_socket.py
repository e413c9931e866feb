"""WebSockets as running requests: their ids, and how they end."""

import re
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.websockets import WebSocketDisconnect

from enginebay.chat.answer.running import RunningRequest
from enginebay.contract.errors import (
    PermissionDeniedError,
    RequestCancelledError,
    ServerStoppingError,
    ServingError,
)
from enginebay.server.http.asgi import STARTS, App, Message, Receive, Scope, Send
from enginebay.server.paths import Paths

REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""An id that a client may give its request in `X-Request-Id`."""

_LONGEST_REASON = 123
"""Bytes of a reason in a close (RFC 6455, 5.5)."""


class WebSocketRequest:
    """A WebSocket that is a running request, from its handshake to its end.

    Before it is accepted, a refusal or an error is an HTTP response in the form of its path.
    Afterwards it is the code of the close: 1001 if the server stops, 1008 if the request is
    cancelled, 1011 for an error, and 1000 if the route has ended.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, paths: Paths) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._paths = paths
        self._running: RunningRequest = scope["state"]["running"]
        self._accepted = self._ended = False

    async def run(self, app: App) -> None:
        """Let the application answer until the route ends, the client leaves or it is cancelled."""
        sent = Headers(scope=self._scope).get("x-request-id", "")
        if REQUEST_ID.fullmatch(sent):
            self._running.id = sent
        self._running.asks = True
        try:
            with self._running.interruptible():
                await app(self._scope, self._receive, self._send_or_end)
        except WebSocketDisconnect:
            return
        except ServingError as error:
            await self._end(error)
        except Exception:
            await self._end(ServingError("an internal error; see the server's log"))
            if not self._running.cancelled:
                raise
        else:
            await self._end(None)

    async def _send_or_end(self, message: Message) -> None:
        """Send a message of the application, or end with the error that it stands for."""
        kind = message["type"]
        if kind == "websocket.close" and not self._accepted:
            reason = message.get("reason") or f"{self._scope['path']} refuses this WebSocket"
            await self._end(PermissionDeniedError(reason))
        elif self._accepted and kind.startswith("websocket.http.response"):
            await self._end(ServingError("an internal error"))
        elif not self._ended or kind == "websocket.http.response.body":
            await self._pass_on(message)

    async def _pass_on(self, message: Message) -> None:
        kind = message["type"]
        if kind in STARTS:
            self._accepted = kind == "websocket.accept"
            message.setdefault("headers", [])
            MutableHeaders(scope=message)["X-Request-Id"] = self._running.id
        self._ended = kind not in ("websocket.accept", "websocket.send")
        await self._send(message)

    async def _end(self, error: ServingError | None) -> None:
        """Refuse the WebSocket, or close it, unless that has been done."""
        error = self._running.cancelled or error
        if self._ended:
            return
        with suppress(OSError):  # its client has left
            if self._accepted:
                reason = (error.message if error else "").encode()[:_LONGEST_REASON]
                close = {"type": "websocket.close", "code": _code(error)}
                await self._pass_on({**close, "reason": reason.decode(errors="ignore")})
            else:
                error = error or PermissionDeniedError("the route has not accepted this WebSocket")
                answer = self._paths.error_response(self._scope, error)
                await answer(self._scope, self._receive, self._pass_on)


def _code(error: ServingError | None) -> int:
    """The code of a close (RFC 6455, 7.4.1)."""
    if isinstance(error, ServerStoppingError):
        return 1001
    if isinstance(error, RequestCancelledError):
        return 1008
    return 1011 if error else 1000
