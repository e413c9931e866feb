"""WebSockets as uvicorn and the package websockets speak them, with limits on how they end."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol

from enginebay.server.http.protocol import UnreadLimit


class WebSocketProtocol(UnreadLimit, WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket.

    uvicorn ends all of them at once when the server stops. Here the application ends them, as it
    ends other running requests.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = 2.0
        self.conn.debug = False  # the log would have keys and texts

    def shutdown(self) -> None:
        """The server stops."""
        if self.close_sent:
            super().shutdown()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response and self.close_sent:
            self.handshake_complete = True  # else uvicorn logs a refusal as an error

    def handle_parser_exception(self) -> None:
        """Close because of what the client has sent, but read on: else it may miss the close."""
        if self.close_sent:
            return
        sent = self.conn.close_sent
        assert sent is not None
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason}
        )
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    @staticmethod
    def accepts(head: bytes) -> bool:
        """Whether this, the line and the headers of a request, is a handshake."""
        protocol = ServerProtocol()
        protocol.debug = False
        protocol.receive_data(head)
        requests = [each for each in protocol.events_received() if isinstance(each, Request)]
        return bool(requests) and protocol.accept(requests[0]).status_code == 101
