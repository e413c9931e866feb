"""HTTP as uvicorn speaks it, with limits on how a request begins, and a shorter way for streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from enginebay.contract.errors import HeadersTooLargeError, InvalidRequestError, ServingError
from enginebay.server.http.asgi import DIRECT_BODY, App, Message, Receive, Scope, Send
from enginebay.server.http.request_limit import MAX_HEADERS

MAX_PIPELINED = 100
"""Requests that a client may send on one connection before it gets the answers to them."""


class ChunkedBody:
    """The `DirectBody` of an answer whose body is chunked: what uvicorn's `send` does for a piece.

    `tests/access/test_direct_body.py` has the names of uvicorn's that this needs.
    """

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport

    def ready(self) -> bool:
        """Whether `write` may be called."""
        cycle = self._cycle
        begun = cycle.chunked_encoding and not cycle.response_complete
        return bool(begun) and not (self._flow.write_paused or cycle.disconnected)

    def write(self, body: bytes) -> None:
        """Write a piece of the body."""
        if body:  # one without bytes would be the last
            self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))


class UnreadLimit(asyncio.Protocol):
    """A connection that is closed if its client leaves data unread for twice `seconds`."""

    seconds = 60.0
    """How long the headers of a request may take."""
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        self._unread = self.loop.call_later(2 * self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read most of it."""
        self._forget_unread()
        super().resume_writing()

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class LimitedProtocol(UnreadLimit, HttpToolsProtocol):
    """A connection whose requests' headers must arrive in time, and be no larger than allowed.

    uvicorn waits for ever for the first byte of a connection and the last one of its headers, and
    keeps as many of them, and of requests, as are sent. Bodies are the application's business, but
    for the rest of one that has been refused: that is thrown away, for as long as headers would be
    waited for. uvicorn also waits for ever for clients to read, and this does not. Streams have a
    limit of their own, by default a shorter one.
    """

    takes_socket: Callable[[str], bool] = staticmethod(lambda path: False)
    """Whether a route takes WebSockets at a path."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._upgrades = self._ends = False
        self._in_headers = False
        self._arrived = 0
        self._others_arrived = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return  # the rest of a body, which must not be read as a request
        if self._timer is None and self.cycle and self.cycle.response_complete:
            self._start_timer()
        self._others_arrived = False
        super().data_received(data)
        # Where other requests came with it, it is not known how much of the data is whose.
        if self._in_headers and not self._others_arrived:
            self._arrived += len(data)
            if self._arrived > MAX_HEADERS:
                said = f"the headers are larger than {MAX_HEADERS} bytes"
                self._refuse(431, HeadersTooLargeError(said))

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        super().on_message_begin()
        self._in_headers, self._arrived = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        """Its body, if it has one, comes next."""
        self._in_headers = False
        self._stop_timer()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RuntimeError(
                "too many requests are waiting"
            )  # the parser stops, and answers with 400
        if sum(name == b"host" for name, _ in self.headers) > 1:  # RFC 9112, 3.2
            self._refuse(400, InvalidRequestError("the request has more than one Host header"))
            raise RuntimeError("more than one Host header")
        self._upgrades = self._is_handshake()
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # else it is an upgrade
            self._offer_direct_body()

    def handle_websocket_upgrade(self) -> None:
        """The connection is a WebSocket from now on."""
        self._forget_unread()
        super().handle_websocket_upgrade()

    def _should_upgrade_to_ws(self) -> bool:
        """Let the application refuse other WebSockets, as it refuses other requests."""
        return self._upgrades

    def _is_handshake(self) -> bool:
        """Whether a WebSocket begins that a route takes, on a connection without other answers."""
        answers = self.cycle is not None and not self.cycle.response_complete
        if answers or self.ws_protocol_class is None or self._get_upgrade() != b"websocket":
            return False
        if not self.takes_socket(unquote(httptools.parse_url(self.url).path.decode("ascii"))):
            return False
        version = self.parser.get_http_version().encode()
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
        lines = [line, *(b"%b: %b" % header for header in self.headers), b"\r\n"]
        web_socket: Any = self.ws_protocol_class
        return bool(web_socket.accepts(b"\r\n".join(lines)))

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the access log has the request, and h2c may be ignored (RFC 9110, 7.8).

        The parser has skipped the body of the request, so the connection ends with the answer.
        """
        sizes = [value for name, value in self.headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        if self.cycle and (chunked or any(value != b"0" for value in sizes)):
            self.cycle.keep_alive = False
            self._ends = True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, _without_chunks(cycle, app) if old else app)

    def on_message_complete(self) -> None:
        """All of it is here."""
        self._stop_timer()
        self._others_arrived = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(400, InvalidRequestError(msg))

    def _offer_direct_body(self) -> None:
        """Where answers are plain chunks on a plain connection."""
        if self.scope["http_version"] == "1.1" and self.scope["scheme"] == "http":
            extensions: dict[str, Any] = {DIRECT_BODY: ChunkedBody(self.cycle)}
            self.scope["extensions"] = extensions

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.seconds, self._time_is_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_up(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self._start_timer()  # the next request can wait while this one is answered
        elif self._in_headers:
            said = f"the headers have not arrived within {self.seconds:g} seconds"
            self._refuse(408, InvalidRequestError(said))
        else:
            self.transport.close()

    def _refuse(self, status: int, error: ServingError) -> None:
        """Answer what is no request yet, and close the connection."""
        self._in_headers = False
        if self.transport.is_closing():
            return
        body = json.dumps(error.body())
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(STATUS_LINE[status] + f"{head}\r\n\r\n{body}".encode())
        self.transport.close()


def _without_chunks(cycle: RequestResponseCycle, app: App) -> Any:
    """The application for a client of HTTP/1.0: a body without a length ends with the connection.

    uvicorn sends it in chunks, which such a client does not know, but closes the connection.
    """

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        sized = True

        async def send_whole(message: Message) -> None:
            nonlocal sized
            if message["type"] == "http.response.start":
                sized = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not sized:
                    cycle.chunked_encoding = False
            elif not sized:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_whole)

    return answered


def limited_protocol(timeout: float) -> type[LimitedProtocol]:
    """The same with another time-out, in seconds."""
    return type("LimitedProtocol", (LimitedProtocol,), {"seconds": timeout})
