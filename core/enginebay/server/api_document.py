"""The OpenAPI document of the server."""

import asyncio
import json

from fastapi import FastAPI


class ApiDocument:
    """The document as JSON, made once, on a thread: it takes seconds of computing."""

    def __init__(self) -> None:
        self._making: asyncio.Task[bytes] | None = None

    def make(self, app: FastAPI) -> asyncio.Task[bytes]:
        """Begin to make it, unless that has been done; on the event loop."""
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(_json, app))
        return self._making

    async def below(self, prefix: str, app: FastAPI) -> bytes:
        """Return it for clients who see the application below this path."""
        document = await asyncio.shield(self.make(app))
        if not prefix:
            return document
        servers = json.dumps({"servers": [{"url": prefix}]}).encode()
        return servers[:-1] + b"," + document[1:]


def _json(app: FastAPI) -> bytes:
    return json.dumps(app.openapi()).encode()
