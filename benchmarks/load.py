"""Load over HTTP: streamed requests, and what was seen of their answers."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.servers import Prompt, Server

_CLOCK_TICK = 0.01
"""The least CPU time that systems count, in seconds."""


@dataclass(slots=True)
class Answer:
    """One streamed answer; times in seconds of `time.perf_counter`.

    `arrivals` are the times at which text came; `tokens` counts what the server's usage says, or,
    where it says nothing, the tokens asked for if that is why the answer ended. `exact` is false
    where only the pieces of text could be counted. `cached_tokens` are those of the prompt that
    the server had computed before; None where it does not say.
    """

    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    exact: bool = True
    text: str = ""
    cached_tokens: int | None = None

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first text."""
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Burst:
    """What requests that came at once got: speed, CPU time of the server, latencies in seconds.

    `other_cores` is how many cores programs used that are neither the server nor this one.
    """

    streams: int
    seconds: float
    tokens: int
    exact: bool
    cpu_seconds: float
    other_cores: float
    ttft: list[float]
    gaps: list[float]

    @property
    def tokens_per_second(self) -> float:
        """Tokens made by all streams together per second."""
        return self.tokens / self.seconds

    @property
    def tokens_per_cpu_second(self) -> float:
        """Tokens made per second of CPU time of the server's processes."""
        return self.tokens / self.cpu_seconds

    def summary(self) -> dict[str, Any]:
        """Its numbers; latencies in milliseconds."""
        return {
            "streams": self.streams,
            "tokens": self.tokens,
            "exact": self.exact,
            "other_cores": round(self.other_cores, 2),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "tokens_per_cpu_second": round(self.tokens_per_cpu_second, 2),
            "ttft_ms": _percentiles(self.ttft),
            "inter_token_ms": _percentiles(self.gaps),
        }


async def burst(server: Server, streams: int, prompts: Sequence[Prompt], tokens: int) -> Burst:
    """Answer all prompts, `streams` of them at any time, each with `tokens` tokens."""
    waiting = list(reversed(prompts))
    answers: list[Answer] = []
    own = time.process_time()

    async def stream() -> None:
        while waiting:
            answers.append(await answer(server, waiting.pop(), tokens))

    cpu, others, start = server.cpu_seconds(), _cpu_seconds_of_all(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    seconds = max(answer.arrivals[-1] for answer in answers) - start
    cpu = max(server.cpu_seconds() - cpu, _CLOCK_TICK)
    others = _cpu_seconds_of_all() - others - cpu - (time.process_time() - own)
    return Burst(
        streams,
        seconds,
        sum(answer.tokens for answer in answers),
        all(answer.exact for answer in answers),
        cpu,
        max(others / seconds, 0.0),
        [answer.ttft for answer in answers],
        [gap for answer in answers for gap in answer.gaps],
    )


async def answer(server: Server, prompt: Prompt, tokens: int) -> Answer:
    """One whole answer; raises RuntimeError when it is an error or has no text."""
    seen = Answer(time.perf_counter())
    async for _ in follow(server, prompt, tokens, seen):
        pass
    if not seen.arrivals:
        raise RuntimeError(f"{server.peer.name} answered without text")
    return seen


async def follow(
    server: Server, prompt: Prompt, tokens: int, seen: Answer
) -> AsyncGenerator[Answer, None]:
    """Send the request and note in `seen` what comes; yields it after each piece of text.

    Closing the iterator closes the connection, which is how a client aborts.
    """
    usage: dict[str, Any] = {}
    finish_reason = None
    async with aclosing(_events(server.port, *server.request(prompt, tokens))) as events:
        async for arrival, event in events:
            if "error" in event:
                raise RuntimeError(f"{server.peer.name}: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                finish_reason = choice.get("finish_reason") or finish_reason
                if text := choice.get("text") or choice.get("delta", {}).get("content"):
                    seen.arrivals.append(arrival)
                    seen.text += text
                    yield seen
    if usage:
        seen.tokens = usage["completion_tokens"]
        seen.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    else:
        seen.exact = finish_reason == "length"
        seen.tokens = tokens if seen.exact else len(seen.arrivals)


async def _events(
    port: int, path: str, body: dict[str, Any]
) -> AsyncGenerator[tuple[float, dict[str, Any]], None]:
    """The server-sent events of a request, each with the time it came."""
    buffer = b""
    async with aclosing(_post(port, path, json.dumps(body).encode())) as chunks:
        async for chunk in chunks:
            arrival = time.perf_counter()
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield arrival, json.loads(line[6:])


async def _post(port: int, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
    """The chunks of the answer's body, by hand: a client library would cost more than a server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), len(body))
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError((head + await reader.read()).decode(errors="replace")[:1000])
        if b"transfer-encoding: chunked" not in head.lower():
            raise RuntimeError("the answer is not streamed")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
    finally:
        writer.close()


def _cpu_seconds_of_all() -> float:
    """CPU time that the whole machine has used so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and worst, in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    values = {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}
    return {name: round(value * 1e3, 2) for name, value in values.items()}
