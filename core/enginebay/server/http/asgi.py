"""The types of ASGI applications, for middleware that needs no framework, and our own extension.

https://asgi.readthedocs.io/en/latest/specs/main.html
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
"""The messages that begin an answer. The last one accepts a WebSocket, with the status 101."""

DIRECT_BODY = "enginebay.direct_body"
"""The extension of a server that has a `DirectBody` for a request's answer.

Events of a stream then bypass all middleware; one that changes bodies must remove it from the
scope.
"""


class DirectBody(Protocol):
    """Writes pieces of an answer's body to the connection, without `send` and all that wraps it."""

    def ready(self) -> bool:
        """Whether `write` may be called: the answer has begun, and its client is there and reads.

        If not, `send` is to be used: it waits for the client, or finds that it has left.
        """

    def write(self, body: bytes) -> None:
        """Write a piece of the body; what the client does not read is kept for it."""
