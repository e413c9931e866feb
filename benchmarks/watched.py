"""A server in a process of its own, and what a client sees of many streams at once."""

import json
import multiprocessing
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks import report

Piece = tuple[float, bytes]
"""When something arrived, by `time.monotonic`, and what."""

TIMEOUT = 60.0
_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Talker:
    """A server in a process of its own."""

    port: int
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """CPU time that it has used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def running(serve: Callable[[Connection], None], *, daemon: bool = True) -> Iterator[Talker]:
    """Run a server until the block ends. A server with `daemon` starts no engine processes."""
    context = multiprocessing.get_context("spawn")
    ready, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=daemon)
    process.start()
    theirs.close()
    try:
        yield Talker(_port(ready), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.join()


def _port(ready: Connection) -> int:
    try:
        if ready.poll(TIMEOUT):
            return int(ready.recv())
    except EOFError:
        pass
    raise RuntimeError("the server did not start")


@dataclass(frozen=True, slots=True)
class Window:
    """What came while all streams ran: after the last had begun, before the first ended."""

    pieces: list[list[Piece]]
    seconds: float
    cpu_seconds: float
    client_seconds: float

    @property
    def bodies(self) -> list[bytes]:
        """What each stream got."""
        return [b"".join(data for _, data in each) for each in self.pieces]

    def late(self, text: bytes, tick: float) -> list[float]:
        """How long after it was due each token came, in seconds; `text` is one's.

        One was due each `tick`, at its multiples by `time.monotonic`, and the promptest of every
        stream came before the next.
        """
        found: list[float] = []
        for pieces in self.pieces:
            arrivals = [at for at, data in pieces for _ in range(data.count(text))]
            since = [at - number * tick for number, at in enumerate(arrivals)]
            due = min(since) // tick * tick
            found += [each - due for each in since]
        return found


def watch(server: Talker, request: bytes, streams: int, mark: bytes) -> Window:
    """Send the request on so many connections at once and read all answers to their end.

    An answer has begun with `mark`.
    """
    unfinished = streams
    before = after = (0.0, 0.0, 0.0)
    pieces: list[list[Piece]] = []
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(streams)
        ]
        received: dict[Any, list[Piece]] = {connection: [] for connection in connections}
        silent = set(connections)
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(request)
        while unfinished:
            ready = selector.select(TIMEOUT)
            if not ready:
                raise RuntimeError("the server has stopped answering")
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 15)
                if not data:
                    raise RuntimeError("the server closed the connection")
                received[connection].append((time.monotonic(), data))
                if connection in silent and mark in data:
                    silent.remove(connection)
                    if not silent:
                        before = _clocks(server)
                        received = {connection: [] for connection in connections}
                if data.endswith(_END):
                    if silent:
                        raise RuntimeError("an answer ended before all had begun")
                    if unfinished == streams:
                        after = _clocks(server)
                        pieces = [list(each) for each in received.values()]
                    unfinished -= 1
    return Window(pieces, *(b - a for a, b in zip(before, after, strict=True)))


def _clocks(server: Talker) -> tuple[float, float, float]:
    return time.perf_counter(), server.cpu_seconds(), time.process_time()


def post(path: str, body: report.Json) -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
