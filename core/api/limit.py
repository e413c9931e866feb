"""A limit on the size of request bodies."""

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import RequestTooLargeError


class BodyLimit:
    """ASGI middleware: a body over `max_bytes` is answered with 413 and never held in memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what it sends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                # FastAPI lets only its own exceptions out while it reads a body.
                raise HTTPException(413, self._error().message)
            return message

        await self._app(scope, counted, send)

    def _error(self) -> RequestTooLargeError:
        return RequestTooLargeError(f"the body is larger than {self._max_bytes} bytes")

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error()
        await JSONResponse(error.body(), error.status)(scope, receive, send)
