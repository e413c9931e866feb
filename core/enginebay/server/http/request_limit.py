"""Limits of requests: their size, how long they take, how they are encoded."""

import asyncio
import json
from dataclasses import dataclass
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from enginebay.chat.answer.running import RunningRequest
from enginebay.contract.errors import (
    HeadersTooLargeError,
    InvalidRequestError,
    RequestTooLargeError,
    ServingError,
)
from enginebay.server.http.body_room import FREE, BodyRoom, BodyShare
from enginebay.server.http.content_encoding import (
    SUPPORTED,
    DamagedBodyError,
    TooLargeError,
    UnknownEncodingError,
    decoded,
    encodings_of,
)
from enginebay.server.paths import Paths

MAX_HEADERS = 65_536
"""Bytes of all headers together, names and values; OpenAI has the same limit."""

_MARKS = b",:[{"
_BEFORE = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may stand in front of JSON: spaces and a byte order mark."""
_ESCAPES = 10
"""Backslashes that count as one value: escapes in texts cost less than values, but not nothing."""


_Refusal = tuple[ServingError, int | None, dict[str, str]]
"""An error, its status if that is not the usual one, and more headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    bytes: int
    values: int
    seconds: float


class RequestLimit:
    """ASGI middleware: a body over `max_bytes` is answered with 413 and never held in memory.

    One that has not arrived within `seconds` is answered with 408, one that is not UTF-8 from its
    beginning on with 400, and headers over `MAX_HEADERS` with 431.

    A JSON object or array with more than `max_values` commas, colons and opening brackets is
    answered with 400. Their number bounds the values that parsing makes, and to count them costs
    almost nothing. Ten backslashes count as one of them.

    Routes get bodies without their `Content-Encoding`, and all limits count what is decoded. Other
    encodings are answered with 415, and a WebSocket that no route takes with 426. Bodies that
    arrive at the same time share a `BodyRoom`: one that finds no room within `seconds` is answered
    with 503.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, max_values: int, seconds: float, paths: Paths
    ) -> None:
        self._app = app
        self._paths = paths
        self._limits = _Limits(bytes=max_bytes, values=max_values, seconds=seconds)
        self._room = BodyRoom(max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what it sends."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        size = int(length) if length.isdigit() else None
        encodings: list[str] = []
        refusal = self._refused(scope, headers, size)
        try:
            if size != 0:
                encodings = encodings_of(scope["headers"])
        except UnknownEncodingError as error:
            said = f"{error}; send the body as it is, or as {', '.join(SUPPORTED)}"
            refusal = InvalidRequestError(said), 415, {"Accept-Encoding": ", ".join(SUPPORTED)}
        if refusal:
            refused, status, more = refusal
            answer = self._paths.error_response(scope, refused, status=status, headers=more)
            await answer(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        if encodings:
            left_out = (b"content-encoding", b"content-length")
            scope["headers"] = [each for each in scope["headers"] if each[0] not in left_out]
        body = _Body(scope, receive, self._limits, self._room, encodings, size)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.release()

    def _refused(
        self, scope: Scope, headers: dict[bytes, bytes], size: int | None
    ) -> _Refusal | None:
        """Return why a request is refused for its headers; None if it is not."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            said = f"the headers are larger than {MAX_HEADERS} bytes"
            return HeadersTooLargeError(said), None, {}
        if size is not None and size > self._limits.bytes:
            return _too_large(self._limits.bytes), None, {}
        if b"websocket" not in headers.get(b"upgrade", b"").lower():
            return None
        path = scope["path"]
        if not self._paths.takes_socket(path):
            said = f"{path} takes no WebSocket; send a plain HTTP request"
        elif scope["type"] == "http":  # `LimitedProtocol` has not let it upgrade
            said = (
                f"{path} takes no such WebSocket; send only a handshake of version 13, to a server "
                "that has the package websockets"
            )
        else:
            return None
        return InvalidRequestError(said), 426, {"Upgrade": "websocket"}


class _Body:
    """The body of one request as it arrives, within the limits.

    `size`: its bytes on the wire, None if that is not known.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        limits: _Limits,
        room: BodyRoom,
        encodings: list[str],
        size: int | None,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._limits = limits
        self._room = room
        self._encodings = encodings
        self._size = size
        self._share: BodyShare | None = None
        self._deadline: float | None = None
        self._received = 0
        self._whole = False
        self._values = 0
        self._start = b""
        self._opening = b""
        scope.setdefault("state", {})["release_body"] = self.release

    async def receive(self) -> Message:
        """The next message, as `receive` of ASGI; errors are those that FastAPI lets out."""
        if self._whole:
            return await self._receive()  # what comes now is that the client leaves
        if not self._encodings:
            message = await self._next()
            self._check(message.get("body", b""))
            return message
        packed, message = bytearray(), await self._next()
        while not self._whole and message["type"] == "http.request":
            packed += message.get("body", b"")
            message = await self._next()
        if message["type"] != "http.request":
            return message
        packed += message.get("body", b"")
        body = await self._decoded(bytes(packed))
        self._check(body)
        return {"type": "http.request", "body": body, "more_body": False}

    def release(self) -> None:
        """Let other bodies have the room of this one, which has been read."""
        if self._share:
            self._share.shrink(0)

    async def _next(self) -> Message:
        """The next message as it was sent."""
        if self._deadline is None:
            if (self._size or 0) > FREE:
                await self._take(self._size or 0)
            self._deadline = asyncio.get_running_loop().time() + self._limits.seconds
        elif self._received > FREE and not self._share:
            await self._take(self._limits.bytes)
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            said = f"the body has not arrived within {self._limits.seconds:g} seconds"
            raise HTTPException(408, said, {"Connection": "close"}) from None
        self._whole = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._limits.bytes:
            self._refuse_size()
        if self._share and self._whole:
            self._share.shrink(self._received)
        return message

    async def _take(self, size: int) -> None:
        """Wait for room; FastAPI lets only its own exceptions out while it reads a body."""
        running: RunningRequest = self._scope["state"]["running"]
        client = self._scope.get("client")
        name = f"key {running.key.name}" if running.key else client[0] if client else ""
        try:
            async with asyncio.timeout(self._limits.seconds):
                self._share = await self._room.take(name, size)
        except TimeoutError:
            said = "too many other large bodies are arriving; send fewer of them at once"
            raise HTTPException(503, said, {"Connection": "close"}) from None

    async def _decoded(self, packed: bytes) -> bytes:
        """The body without its encodings, computed on a thread."""
        try:
            try:
                return await asyncio.to_thread(decoded, packed, self._encodings, FREE)
            except TooLargeError:
                self.release()
                await self._take(self._limits.bytes)
            body = await asyncio.to_thread(decoded, packed, self._encodings, self._limits.bytes)
        except TooLargeError:
            self._refuse_size()
        except DamagedBodyError as error:
            raise HTTPException(400, str(error)) from None
        if self._share:
            self._share.shrink(len(body))
        return body

    def _refuse_size(self) -> NoReturn:
        raise HTTPException(413, _too_large(self._limits.bytes).message)

    def _check(self, body: bytes) -> None:
        """Refuse what is no UTF-8, or would make too many values."""
        self._opening = self._opening or body.lstrip(_BEFORE)[:1]
        if self._opening in (b"{", b"["):
            self._values += len(body) - len(body.translate(None, _MARKS))
            self._values += body.count(b"\\") // _ESCAPES
        if self._values > self._limits.values:
            raise HTTPException(
                400,
                f"the body has more than {self._limits.values} commas, colons and opening "
                "brackets; server.max_request_values sets this limit",
            )
        if len(self._start) < 4:
            self._start += body[:4]
            if not json.detect_encoding(self._start).startswith("utf-8"):
                raise HTTPException(400, "the body is not UTF-8, as JSON has to be")


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the body is larger than {limit} bytes")
