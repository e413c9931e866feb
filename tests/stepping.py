"""A scripted engine whose tokens are events of their own, and a client that sees them arrive."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from enginebay import Delta, ServingError
from enginebay.testing import ScriptedEngine

TURNS = 100
"""Of the event loop, after which it has done all that a step or a request needs."""


async def turns() -> None:
    """Let the event loop do what there is to do."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Stepping(ScriptedEngine):
    """Makes a step when all is done that there is to do for the one before.

    `loop`: the one that does it.
    """

    loop: asyncio.AbstractEventLoop | None = None

    def step(self) -> list[tuple[str, Delta | ServingError]]:
        if self.loop:
            asyncio.run_coroutine_threadsafe(turns(), self.loop).result(60)
        return list(super().step())


class Connection:
    """A client that reads an answer chunk by chunk, or does not."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._file = connection.makefile("rb")

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self.socket.close()

    def ask(self, path: str, body: dict[str, Any], version: str = "1.1", **headers: str) -> None:
        """Send a request."""
        content = json.dumps(body).encode()
        sent = {"Host": "127.0.0.1", "Content-Type": "application/json", **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in sent.items()]
        head = "\r\n".join([f"POST {path} HTTP/{version}", *lines])
        length = f"\r\nContent-Length: {len(content)}\r\n\r\n"
        self.socket.sendall((head + length).encode() + content)

    def head(self) -> str:
        """Read the status and the headers."""
        return "".join(line.decode() for line in iter(self._file.readline, b"\r\n"))

    def lines(self) -> Iterator[bytes]:
        """Read the lines of a body without chunks, until the server hangs up."""
        yield from iter(self._file.readline, b"")

    def chunks(self) -> Iterator[bytes]:
        """Read the chunks of the body, up to the last one or until the server hangs up."""
        while size := int(self._file.readline() or b"0", 16):
            chunk = self._file.read(size + 2)
            assert chunk.endswith(b"\r\n")
            yield chunk[:-2]


@contextmanager
def connected(url: str, buffer: int | None = None) -> Iterator[Connection]:
    """A connection to a server; `buffer`: bytes that may wait for this client to read them."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(60)
        connection.connect((host, int(port)))
        client = Connection(connection)
        try:
            yield client
        finally:
            client.close()


_VARIES = (
    (rb'"(id|call_id|item_id|tool_use_id)":"[^"]*"', rb'"\1":"X"'),
    (rb'"(created|created_at|completed_at)":("[^"]*"|[0-9.]+)', rb'"\1":0'),
    (rb'"([a-z0-9_]+(_s|_ms|_second|_duration))":[0-9.e+-]+', rb'"\1":0'),
)


def without_times(chunk: bytes) -> bytes:
    """A piece of an answer without what no two have in common: ids and times."""
    for pattern, instead in _VARIES:
        chunk = re.sub(pattern, instead, chunk)
    return chunk
