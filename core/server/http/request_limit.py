"""Limits of requests: their size, how long they take, how their text is encoded."""

import asyncio
import json

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.contract.errors import HeadersTooLargeError, RequestTooLargeError, ServingError
from core.server.paths import Paths

MAX_HEADERS = 65_536
"""Bytes of all headers together, names and values; OpenAI has the same limit."""

_MARKS = b",:[{"
_BEFORE = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may stand in front of JSON: spaces and a byte order mark."""
_ESCAPES = 10
"""Backslashes that count as one value: escapes in texts cost less than values, but not nothing."""


class RequestLimit:
    """ASGI middleware: a body over `max_bytes` is answered with 413 and never held in memory.

    One that has not arrived within `seconds` is answered with 408, one that is not UTF-8 from its
    beginning on with 400, and headers over `MAX_HEADERS` with 431.

    A JSON object or array with more than `max_values` commas, colons and opening brackets is
    answered with 400. Their number bounds the values that parsing makes, and to count them costs
    almost nothing. Ten backslashes count as one of them.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, max_values: int, seconds: float, paths: Paths
    ) -> None:
        self._app = app
        self._paths = paths
        self._max_bytes = max_bytes
        self._max_values = max_values
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what it sends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            too_large = HeadersTooLargeError(f"the headers are larger than {MAX_HEADERS} bytes")
            await self._refusal(scope, too_large)(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_bytes:
            await self._refusal(scope, self._error())(scope, receive, send)
            return
        received, values, whole, start, opening = 0, 0, False, b"", b""
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def counted() -> Message:
            nonlocal received, values, whole, start, opening
            if whole:
                return await receive()  # what comes now is that the client leaves
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                said = f"the body has not arrived within {self._seconds:g} seconds"
                raise HTTPException(408, said, {"Connection": "close"}) from None
            whole = not message.get("more_body", False)
            body = message.get("body", b"")
            received += len(body)
            if received > self._max_bytes:
                # FastAPI lets only its own exceptions out while it reads a body.
                raise HTTPException(413, self._error().message)
            opening = opening or body.lstrip(_BEFORE)[:1]
            if opening in (b"{", b"["):
                values += len(body) - len(body.translate(None, _MARKS))
                values += body.count(b"\\") // _ESCAPES
            if values > self._max_values:
                raise HTTPException(
                    400,
                    f"the body has more than {self._max_values} commas, colons and opening "
                    "brackets; server.max_request_values sets this limit",
                )
            if len(start) < 4:
                start += body[:4]
                if not json.detect_encoding(start).startswith("utf-8"):
                    raise HTTPException(400, "the body is not UTF-8, as JSON has to be")
            return message

        await self._app(scope, counted, send)

    def _refusal(self, scope: Scope, error: ServingError) -> ASGIApp:
        return self._paths.error_response(scope, error)

    def _error(self) -> RequestTooLargeError:
        return RequestTooLargeError(f"the body is larger than {self._max_bytes} bytes")
