"""What many streams of one server get, whose CPU time it takes, and how late it comes."""

import re
import selectors
import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks import report
from benchmarks.cluster_sites import STEP, Served, cpu_of_all
from benchmarks.watched import TIMEOUT, post

STAMP = re.compile(rb"\d{10}\.\d{6}")
"""The text of a token: when it was made."""

_END = b"0\r\n\r\n"
_TICK = 0.01
"""The least CPU time that systems count, in seconds."""


@dataclass(slots=True)
class Stream:
    """One answer: when it was asked for, when its first token came, and what came when."""

    sent: float
    first: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment, and CPU seconds until then: of the front, the engine, the rest, this one, all."""

    time: float
    cpu: tuple[float, float, float]
    own: float
    all: float

    @classmethod
    def now(cls, served: Served) -> "Instant":
        """Of a server."""
        return cls(time.time(), served.clocks(), time.process_time(), cpu_of_all())


def ask(served: Served, tokens: int) -> bytes:
    """A streamed chat of so many tokens, as it goes over the wire."""
    body = {
        "model": served.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": tokens,
        "stream": True,
    }
    return post("/v1/chat/completions", body)


def measure(served: Served, streams: int, seconds: float) -> report.Json:
    """So many streams at once, counted from when all have begun until the first ends."""
    asked, begin, end = _watched(served, streams, ask(served, int(seconds / STEP)))
    wall = end.time - begin.time
    pieces = [
        piece for stream in asked for piece in stream.pieces if begin.time < piece[0] <= end.time
    ]
    found = [(at, STAMP.findall(data)) for at, data in pieces]
    late = sorted(at - float(stamp) for at, stamps in found for stamp in stamps)
    tokens = len(late)
    used = [b - a for a, b in zip(begin.cpu, end.cpu, strict=True)]
    others = end.all - begin.all - sum(used) - (end.own - begin.own)
    micros = [max(each, _TICK) / tokens * 1e6 for each in used]
    return {
        "server": served.name,
        "streams": streams,
        "tokens_per_second": round(tokens / wall, 1),
        "front_us": round(micros[0], 1),
        "engine_us": round(micros[1], 1) if served.engine() else 0.0,
        "rest_cores": round(used[2] / wall, 3),
        "first_ms": round(statistics.median(s.first - s.sent for s in asked) * 1e3, 1),
        "late_ms": [round(late[int(tokens * at)] * 1e3, 2) for at in (0.5, 0.99)],
        "tokens_per_arrival": round(tokens / sum(bool(stamps) for _, stamps in found), 2),
        "client_cores": round((end.own - begin.own) / wall, 3),
        "other_cores": round(max(0.0, others) / wall, 3),
    }


def _watched(
    served: Served, streams: int, request: bytes
) -> tuple[Sequence[Stream], Instant, Instant]:
    """All answers to their end; when the last had begun, and when the first had ended."""
    begin = end = None
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        asked = []
        for _ in range(streams):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            asked.append(Stream(time.time()))
            selector.register(connection, selectors.EVENT_READ, asked[-1])
            connection.sendall(request)
        silent, left = streams, streams
        while left:
            ready = selector.select(TIMEOUT)
            if not ready:
                raise RuntimeError(f"{served.name} has stopped answering")
            for key, _ in ready:
                connection, stream = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 16)
                if not data:
                    raise RuntimeError(f"{served.name} closed the connection")
                now = time.time()
                stream.pieces.append((now, data))
                if not stream.first and STAMP.search(data):
                    stream.first = now
                    silent -= 1
                    if not silent:
                        begin = Instant.now(served)
                if data.endswith(_END) and not stream.ended:
                    stream.ended = True
                    left -= 1
                    end = end or Instant.now(served)
    if begin is None or end is None or end.time <= begin.time:
        raise RuntimeError(f"an answer of {served.name} ended before all had begun")
    return asked, begin, end
