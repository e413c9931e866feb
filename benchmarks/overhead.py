"""What does the core cost for each streamed token?

    python3 start.py python benchmarks/overhead.py

Enginebay with an engine that has nothing to compute and a bare ASGI app, which sends the same bytes
ready-made, take turns under the same client; `talkers.py` has both. Enginebay is measured twice: in
step with its streams, so that every token is an event of its own, and with an engine that runs
free, so that tokens which pile up are sent together. Then both are paced as a real engine paces a
server: a token for every stream each 20 ms, which is late by how long it takes to the client.
"""

import argparse
import importlib.metadata
import json
import platform
import statistics
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks import report, talkers
from benchmarks.watched import TIMEOUT, Talker, post, running, watch

RESULTS = Path(__file__).parent / "results" / "overhead.json"
STREAMS = (1, 16, 64)
PACED_STREAMS = (64, 256)
PACED = ("chat", "chat, thought and tools")
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


OFFERED = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MODES: Mapping[str, Mode] = {
    "chat": Mode("/v1/chat/completions", {"messages": HELLO}, b'"delta":'),
    "chat, logprobs": Mode(
        "/v1/chat/completions",
        {"messages": HELLO, "logprobs": True, "top_logprobs": 5},
        b'"delta":',
    ),
    "chat, thought": Mode(
        "/v1/chat/completions", {"model": "thinker", "messages": HELLO}, b'"delta":'
    ),
    "chat, thought and tools": Mode(
        "/v1/chat/completions",
        {"model": "thinker", "messages": HELLO, "tools": [OFFERED]},
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
    "in step": partial(talkers.serve_enginebay, pace="in step"),
    "free": partial(talkers.serve_enginebay, pace="free"),
    "paced": partial(talkers.serve_enginebay, pace="ticking"),
}
BURSTS = ("bare", "in step", "free")
_CLOCK_TICK = 0.01
"""The least CPU time that systems count, in seconds."""
_PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "fastapi", "pydantic")


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


def single_event(server: Talker, mode: str) -> bytes:
    """The event that brings one token, as Enginebay sends it."""
    asked = MODES[mode]
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{asked.path}",
        json.dumps(asked.asks(4, 1)).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        events = asked.events(answer.read())
    return events[2] + asked.separator


def question(mode: str, tokens: int, streams: int) -> bytes:
    """Asks Enginebay for one of so many streamed answers of so many tokens."""
    asked = MODES[mode]
    return post(asked.path, asked.asks(tokens, streams))


def ready_made(event: bytes, tokens: int, streams: int, *, ticking: bool = False) -> bytes:
    """Asks the bare app to send this event so many times, on one of so many streams."""
    asked = {"event": event.decode(), "tokens": tokens, "streams": streams, "ticking": ticking}
    return post("/", asked)


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


def compare_paced(
    servers: Mapping[str, Talker], streams: int, mode: str, seconds: float
) -> Iterator[report.Json]:
    """The same with so many seconds of a token each tick."""
    tokens = int(seconds / talkers.TICK)
    event = single_event(servers["in step"], mode)
    for name in servers:
        if name in ("bare", "paced"):
            bare = name == "bare"
            request = (
                ready_made(event, tokens, streams, ticking=True)
                if bare
                else question(mode, tokens, streams)
            )
            window = watch(servers[name], request, streams, MODES[mode].mark)
            late = sorted(window.late(talkers.PIECE.encode(), talkers.TICK))
            yield {
                "server": name,
                "mode": mode,
                "streams": streams,
                "cpu_ms_per_1000_tokens": round(window.cpu_seconds / len(late) * 1e6, 3),
                "cores": round(window.cpu_seconds / window.seconds, 3),
                "late_ms": [round(late[int(len(late) * at)] * 1e3, 2) for at in (0.5, 0.99)],
            }


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

            speed = {name: values(name, "tokens_per_second") for name in BURSTS}
            cpu = {name: values(name, "cpu_ms_per_1000_tokens") for name in BURSTS}
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


def paced_table(results: report.Json) -> str:
    """The same of paced streams, with how late tokens came: median and 99th percentile."""
    head = ["", "streams", "bare CPU ms", "Enginebay", "ratio", "bare cores", "Enginebay"]
    head += ["bare late ms", "Enginebay", "bare p99", "Enginebay"]
    rows = []
    for mode, streams in dict.fromkeys((e["mode"], e["streams"]) for e in results["paced"]):
        bare, ours = (
            [
                entry
                for entry in results["paced"]
                if (entry["server"], entry["mode"], entry["streams"]) == (server, mode, streams)
            ]
            for server in ("bare", "paced")
        )
        cpu = [[entry["cpu_ms_per_1000_tokens"] for entry in each] for each in (bare, ours)]
        others = [
            [read(entry) for entry in each]
            for read in (
                lambda entry: entry["cores"],
                lambda entry: entry["late_ms"][0],
                lambda entry: entry["late_ms"][1],
            )
            for each in (bare, ours)
        ]
        medians = [report.number(statistics.median(values)) for values in others]
        rows.append([mode, str(streams), *_compared(*cpu), *medians])
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
    parser.add_argument("--paced-modes", default=";".join(PACED), help="the same; may be empty")
    parser.add_argument("--paced-streams", default=",".join(map(str, PACED_STREAMS)))
    parser.add_argument("--paced-seconds", type=float, default=10, help="that each of them takes")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: report.Json = {
        **report.machine(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "measured": [],
        "paced": [],
    }
    modes = [mode for mode in options.modes.split(";") if mode]
    paced_modes = [mode for mode in options.paced_modes.split(";") if mode]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(serve)) for name, serve in SERVERS.items()}
        bursting = {name: servers[name] for name in BURSTS}
        for mode in dict.fromkeys(modes + paced_modes):
            list(compare(bursting, 8, mode, 4000))  # to warm up
            list(compare_paced(servers, 8, mode, 1.0))
        for number in range(options.rounds):
            for mode in modes:
                for streams in map(int, options.streams.split(",")):
                    tokens = max(options.tokens, options.tokens * 32 // streams)
                    results["measured"] += compare(_turned(bursting, number), streams, mode, tokens)
            for mode in paced_modes:
                for streams in map(int, options.paced_streams.split(",")):
                    results["paced"] += compare_paced(
                        _turned(servers, number), streams, mode, options.paced_seconds
                    )
    report.write(results, options.output)
    print(table(results))
    print(paced_table(results))


def _turned(servers: Mapping[str, Talker], number: int) -> dict[str, Talker]:
    """The same servers, beginning with another one each time."""
    names = list(servers)
    at = number % len(names)
    return {name: servers[name] for name in names[at:] + names[:at]}


if __name__ == "__main__":
    main()
