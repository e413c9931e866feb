"""What do priorities and limits of waiting do for a server that gets twice what it can do?

    python benchmarks/overload.py

Requests come at random times, whether others have been answered or not: a quarter of them of
people (`chat`), three quarters of programs (`batch`), all of the same size. Whoever has no whole
answer in time hangs up: after three times what an answer takes on a server that is just busy. The
same requests come again and again, in changing order of these ways:

`equal`: nobody has a priority. `priorities`: batch requests have the number 10. `waiting limit`:
nobody has, but a server whose `queue_timeout` is one such time, a third of what clients wait for.
`both`: that and priorities.

The engine is a model that sleeps (`layer`), or llama.cpp with the demo model.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import report
from benchmarks.overload_server import SLOTS, server
from benchmarks.watched import Talker, running

RESULTS = Path(__file__).parent / "results" / "overload.json"
CLASSES = ("chat", "batch")
CHAT_SHARE = 0.25
BATCH_PRIORITY = 10
OVERLOAD = 2.0
PATIENCE = 3.0
"""Times what an answer takes on a busy server."""
WAYS: Mapping[str, tuple[bool, bool]] = {
    "equal": (False, False),
    "priorities": (True, False),
    "waiting limit": (False, True),
    "both": (True, True),
}
"""Whether there are priorities, and a limit of waiting."""
_PROMPT_TOKENS, _TOKENS = 64, {"layer": 48, "llamacpp": 128}


@dataclass(slots=True)
class Seen:
    """What became of a request; times in seconds since it was sent."""

    kind: str
    first: float | None = None
    whole: float | None = None
    refused: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class Load:
    """Requests to one port, each with another prompt."""

    port: int
    tokens: int
    prompts: random.Random = field(default_factory=lambda: random.Random(1))

    async def ask(self, kind: str, seconds: float, priority: int = 0) -> Seen:
        """One request, given up after so many seconds."""
        seen = Seen(kind)
        began = time.perf_counter()
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(seconds), aclosing(self._events(priority)) as events:
                async for event in events:
                    now = time.perf_counter() - began
                    if event.startswith(b"HTTP/1.1 429"):
                        seen.refused = now
                    elif event.startswith(b"data: {") and b'"text":' in event:
                        seen.first = seen.first or now
                        seen.tokens += 1
                    elif event.startswith(b"data: [DONE]"):
                        seen.whole = now
        return seen

    async def _events(self, priority: int) -> AsyncGenerator[bytes, None]:
        """The lines of the answer."""
        prompt = [self.prompts.randrange(300, 900) for _ in range(_PROMPT_TOKENS)]
        body = json.dumps(
            {
                "model": "bench",
                "prompt": prompt,
                "max_tokens": self.tokens,
                "ignore_eos": True,
                "stream": True,
                "priority": priority,
            }
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{self.port}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
            while line := await reader.readline():
                yield line
        finally:
            writer.close()


async def busy(load: Load, seconds: float) -> float:
    """Seconds that an answer takes when there is one request for each slot all the time."""
    end = time.perf_counter() + seconds
    took: list[float] = []

    async def client() -> None:
        while time.perf_counter() < end:
            seen = await load.ask("warm-up", 60.0)
            took.append(seen.whole or 60.0)

    await asyncio.gather(*(client() for _ in range(SLOTS)))
    return statistics.median(took)


async def overload(
    load: Load, answer_seconds: float, seconds: float, seed: str, *, priorities: bool
) -> list[Seen]:
    """What became of all that came in so many seconds."""
    chance = random.Random(seed)
    rate = OVERLOAD * SLOTS / answer_seconds
    tasks: list[asyncio.Task[Seen]] = []
    began, at = time.perf_counter(), 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        kind = CLASSES[chance.random() >= CHAT_SHARE]
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        priority = BATCH_PRIORITY if priorities and kind == "batch" else 0
        tasks.append(asyncio.create_task(load.ask(kind, PATIENCE * answer_seconds, priority)))
    return await asyncio.gather(*tasks)


def measure(
    talker: Talker, engine: str, answer_seconds: float, seconds: float, seed: str, way: str
) -> report.Json:
    """A row for each class, and what of the server's time was for nothing."""
    load = Load(talker.port, _TOKENS[engine])
    cpu = talker.cpu_seconds()
    seen = asyncio.run(overload(load, answer_seconds, seconds, seed, priorities=WAYS[way][0]))
    capacity = SLOTS / answer_seconds * seconds
    wasted = sum(each.tokens for each in seen if each.whole is None)
    return {
        "engine": engine,
        "way": way,
        "cpu_seconds": round(talker.cpu_seconds() - cpu, 2),
        "goodput": round(sum(each.whole is not None for each in seen) / capacity, 3),
        "wasted_tokens": round(wasted / max(1, sum(each.tokens for each in seen)), 3),
        "classes": {kind: _class(kind, seen, answer_seconds) for kind in CLASSES},
    }


def _class(kind: str, seen: Iterable[Seen], answer_seconds: float) -> report.Json:
    own = [each for each in seen if each.kind == kind]
    firsts = [each.first / answer_seconds for each in own if each.first is not None]
    refusals = [each.refused / answer_seconds for each in own if each.refused is not None]
    answered = sum(each.whole is not None for each in own)
    return {
        "sent": len(own),
        "in_time": round(answered / max(1, len(own)), 3),
        "refused": round(len(refusals) / max(1, len(own)), 3),
        "gave_up": round((len(own) - answered - len(refusals)) / max(1, len(own)), 3),
        "ttft": _quantiles(firsts),
        "until_refused": _quantiles(refusals),
    }


def _quantiles(values: Sequence[float]) -> list[float] | None:
    """Median and 99th percentile."""
    if not values:
        return None
    ordered = sorted(values)
    return [round(ordered[int(len(ordered) * at)], 2) for at in (0.5, 0.99)]


def table(results: report.Json) -> str:
    """Medians of the rounds; times are in those that an answer takes on a busy server."""
    head = ["", "", "in time", "refused", "gave up", "TTFT p50", "p99", "refused after", "all"]
    head += ["tokens for nothing"]
    rows = []
    measured = results["measured"]
    for engine, way in dict.fromkeys((entry["engine"], entry["way"]) for entry in measured):
        same = [e for e in measured if (e["engine"], e["way"]) == (engine, way)]
        for kind in CLASSES:
            own = [entry["classes"][kind] for entry in same]
            shares = [
                f"{statistics.median(each[key] for each in own):.0%}"
                for key in ("in_time", "refused", "gave_up")
            ]
            times = [
                _median([each[key][place] for each in own if each[key]])
                for key, place in (("ttft", 0), ("ttft", 1), ("until_refused", 0))
            ]
            whole = ["", ""]
            if kind == CLASSES[0]:
                whole = [
                    f"{statistics.median(entry['goodput'] for entry in same):.2f}",
                    f"{statistics.median(entry['wasted_tokens'] for entry in same):.0%}",
                ]
            rows.append([f"{engine}, {way}" if whole[0] else "", kind, *shares, *times, *whole])
    return report.markdown(head, rows)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else ""


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", default="layer,llamacpp")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20, help="that requests come in")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    ways = options.ways.split(",")
    results: report.Json = {**report.machine(), "measured": [], "answer_seconds": {}}
    for engine in options.engines.split(","):
        with ExitStack() as stack:
            plain = stack.enter_context(running(server(engine, options.threads)))
            load = Load(plain.port, _TOKENS[engine])
            asyncio.run(busy(load, 2))
            took = asyncio.run(busy(load, options.seconds / 3))
            results["answer_seconds"][engine] = round(took, 3)
            limiting = plain
            if any(WAYS[way][1] for way in ways):
                limited = server(engine, options.threads, queue_timeout=took)
                limiting = stack.enter_context(running(limited))
                asyncio.run(busy(Load(limiting.port, _TOKENS[engine]), 2))
            for number in range(options.rounds):
                for way in ways if number % 2 == 0 else reversed(ways):
                    talker = limiting if WAYS[way][1] else plain
                    row = measure(talker, engine, took, options.seconds, str(number), way)
                    results["measured"].append(row)
                    time.sleep(took)  # for what clients have left to end
    report.write(results, options.output)
    print(table(results))


if __name__ == "__main__":
    main()
