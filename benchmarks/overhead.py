"""What does the core cost for each streamed token?

    python3 start.py python benchmarks/overhead.py

Enginebay with an engine that has nothing to compute and a bare ASGI app, which sends the same bytes
ready-made, take turns under the same client; `talkers.py` has both. Enginebay is measured twice: in
step with its streams, so that every token is an event of its own, and with an engine that runs
free, so that tokens which pile up are sent together.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import platform
import selectors
import socket
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks import report, talkers

RESULTS = Path(__file__).parent / "results" / "overhead.json"
STREAMS = (1, 16, 64)
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True, slots=True)
class Mode:
    """A streaming route and what it is asked; `limits` says so many tokens, on so many streams.

    Events end with `separator`; those that bring tokens have `mark` in them, and no others do that
    have the text of tokens.
    """

    path: str
    body: report.Json
    mark: bytes
    separator: bytes = b"\n\n"
    limits: Callable[[int, int], report.Json] = lambda tokens, streams: {
        "max_tokens": tokens,
        "seed": streams,
    }

    def asks(self, tokens: int, streams: int) -> report.Json:
        """The body for one of so many streamed answers of so many tokens."""
        return {**self.body, **self.limits(tokens, streams), "stream": True}

    def events(self, body: bytes) -> list[bytes]:
        """Those that bring tokens."""
        return [event for event in body.split(self.separator) if self.mark in event]


MODES: Mapping[str, Mode] = {
    "chat": Mode("/v1/chat/completions", {"messages": HELLO}, b'"delta":'),
    "chat, logprobs": Mode(
        "/v1/chat/completions",
        {"messages": HELLO, "logprobs": True, "top_logprobs": 5},
        b'"delta":',
    ),
    "completions": Mode("/v1/completions", {"prompt": "Hello"}, b'"text":'),
    "completions, logprobs": Mode(
        "/v1/completions", {"prompt": "Hello", "logprobs": 5}, b'"text":'
    ),
    "responses": Mode(
        "/v1/responses",
        {"input": "Hello", "store": False},
        b'"response.output_text.delta"',
        limits=lambda tokens, streams: {"max_output_tokens": tokens, "seed": streams},
    ),
    "messages": Mode("/v1/messages", {"model": "talker", "messages": HELLO}, b'"text_delta"'),
    "ollama": Mode(
        "/api/chat",
        {"model": "talker", "messages": HELLO},
        b'"message":',
        b"\n",
        lambda tokens, streams: {"options": {"num_predict": tokens, "seed": streams}},
    ),
    "kobold": Mode(
        "/api/extra/generate/stream",
        {"prompt": "Hello"},
        b'"token":',
        limits=lambda tokens, streams: {"max_length": tokens, "sampler_seed": streams},
    ),
}
SERVERS: Mapping[str, Callable[[Connection], None]] = {
    "bare": talkers.serve_bare,
    "in step": partial(talkers.serve_enginebay, gated=True),
    "free": partial(talkers.serve_enginebay, gated=False),
}
_END = b"0\r\n\r\n"
_TIMEOUT = 60.0
_CLOCK_TICK = 0.01
"""The least CPU time that systems count, in seconds."""
_PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "fastapi", "pydantic")


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
def running(serve: Callable[[Connection], None]) -> Iterator[Talker]:
    """Run a server until the block ends."""
    context = multiprocessing.get_context("spawn")
    ready, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Talker(_port(ready), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.join()


def _port(ready: Connection) -> int:
    try:
        if ready.poll(_TIMEOUT):
            return int(ready.recv())
    except EOFError:
        pass
    raise RuntimeError("the server did not start")


@dataclass(frozen=True, slots=True)
class Window:
    """What came while all streams ran: after the last had begun, before the first ended."""

    bodies: list[bytes]
    seconds: float
    cpu_seconds: float
    client_seconds: float


def watch(server: Talker, request: bytes, streams: int, mark: bytes) -> Window:
    """Send the request on so many connections at once and read all answers to their end.

    An answer has begun with `mark`.
    """
    unfinished = streams
    before = after = (0.0, 0.0, 0.0)
    bodies: list[bytes] = []
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(streams)
        ]
        received: dict[Any, list[bytes]] = {connection: [] for connection in connections}
        silent = set(connections)
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(request)
        while unfinished:
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError("the server has stopped answering")
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 15)
                if not data:
                    raise RuntimeError("the server closed the connection")
                received[connection].append(data)
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
                        bodies = [b"".join(pieces) for pieces in received.values()]
                    unfinished -= 1
    return Window(bodies, *(b - a for a, b in zip(before, after, strict=True)))


def _clocks(server: Talker) -> tuple[float, float, float]:
    return time.perf_counter(), server.cpu_seconds(), time.process_time()


def measure(server: Talker, request: bytes, streams: int, mode: Mode, event: bytes) -> report.Json:
    """The speed of one burst; `event` is what a single token looks like."""
    window = watch(server, request, streams, mode.mark)
    piece = talkers.PIECE.encode()
    counts = [sent.count(piece) for body in window.bodies for sent in mode.events(body)]
    tokens = sum(counts) / event.count(piece)
    events = sum(count > 0 for count in counts)
    return {
        "streams": streams,
        "tokens_per_second": round(tokens / window.seconds, 1),
        "cpu_ms_per_1000_tokens": round(max(window.cpu_seconds, _CLOCK_TICK) / tokens * 1e6, 3),
        "tokens_per_event": round(tokens / events, 2),
        "client_cores": round(window.client_seconds / window.seconds, 2),
    }


def post(path: str, body: report.Json) -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )


def single_event(server: Talker, mode: str) -> bytes:
    """The event that brings one token, as Enginebay sends it."""
    asked = MODES[mode]
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{asked.path}",
        json.dumps(asked.asks(4, 1)).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        events = asked.events(answer.read())
    return events[2] + asked.separator


def question(mode: str, tokens: int, streams: int) -> bytes:
    """Asks Enginebay for one of so many streamed answers of so many tokens."""
    asked = MODES[mode]
    return post(asked.path, asked.asks(tokens, streams))


def ready_made(event: bytes, tokens: int, streams: int) -> bytes:
    """Asks the bare app to send this event so many times, on one of so many streams."""
    return post("/", {"event": event.decode(), "tokens": tokens, "streams": streams})


def compare(
    servers: Mapping[str, Talker], streams: int, mode: str, tokens: int
) -> Iterator[report.Json]:
    """Measure one server after the other with answers of so many tokens."""
    event = single_event(servers["in step"], mode)
    for name, server in servers.items():
        bare = name == "bare"
        request = ready_made(event, tokens, streams) if bare else question(mode, tokens, streams)
        measured = measure(server, request, streams, MODES[mode], event)
        yield {"server": name, "mode": mode, **measured}


def table(results: report.Json) -> str:
    """Medians of the rounds as a Markdown table; ratios are computed within each round."""
    head = ["", "streams", "bare tokens/s", "Enginebay", "ratio", "bare CPU ms", "Enginebay"]
    head += ["ratio", "chat = 1", "free tokens/s", "ratio", "tokens an event"]
    rows = []
    for mode in MODES:
        for streams in sorted({entry["streams"] for entry in results["measured"]}):

            def values(server: str, key: str, at: tuple[str, int] = (mode, streams)) -> list[float]:
                return [
                    entry[key]
                    for entry in results["measured"]
                    if (entry["server"], entry["mode"], entry["streams"]) == (server, *at)
                ]

            speed = {name: values(name, "tokens_per_second") for name in SERVERS}
            cpu = {name: values(name, "cpu_ms_per_1000_tokens") for name in SERVERS}
            of_chat = values("in step", "cpu_ms_per_1000_tokens", ("chat", streams))
            if speed["bare"]:
                rows.append(
                    [
                        mode,
                        str(streams),
                        *_compared(speed["bare"], speed["in step"]),
                        *_compared(cpu["bare"], cpu["in step"]),
                        _compared(of_chat, cpu["in step"])[2] if of_chat else "",
                        *_compared(speed["bare"], speed["free"])[1:],
                        report.number(statistics.median(values("free", "tokens_per_event"))),
                    ]
                )
    return report.markdown(head, rows)


def _compared(bare: list[float], ours: list[float]) -> tuple[str, str, str]:
    """Both medians, and the median of the rounds' ratios."""
    ratio = statistics.median(b / a for a, b in zip(bare, ours, strict=True))
    medians = (report.number(statistics.median(bare)), report.number(statistics.median(ours)))
    return (*medians, f"{ratio:.2f}")


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)))
    parser.add_argument("--modes", default=";".join(MODES), help="separated by semicolons")
    parser.add_argument("--tokens", type=int, default=1000, help="of an answer")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: report.Json = {
        **report.machine(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "measured": [],
    }
    names = list(SERVERS)
    with (
        running(SERVERS["bare"]) as bare,
        running(SERVERS["in step"]) as in_step,
        running(SERVERS["free"]) as free,
    ):
        servers = dict(zip(names, (bare, in_step, free), strict=True))
        modes = options.modes.split(";")
        for mode in modes:
            list(compare(servers, 8, mode, 4000))  # to warm up
        for number in range(options.rounds):
            order = names[number % 3 :] + names[: number % 3]
            taken = {name: servers[name] for name in order}
            for mode in modes:
                for streams in map(int, options.streams.split(",")):
                    tokens = max(options.tokens, options.tokens * 32 // streams)
                    results["measured"] += compare(taken, streams, mode, tokens)
    report.write(results, options.output)
    print(table(results))


if __name__ == "__main__":
    main()
