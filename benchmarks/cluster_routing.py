"""Chats on a real cluster of engines that keep time, beside the simulation of the same chats."""

import asyncio
import json
import os
import random
import statistics
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import httpx2

from benchmarks import report
from benchmarks.cluster_simulation_chats import Chat, Cluster, first_tokens, most_running
from benchmarks.cluster_simulation_engines import BLOCK, Clock, Machine, Request
from benchmarks.cluster_simulation_routing import POLICIES, router
from benchmarks.cluster_sites import PLUGINS, a_site, port_of, serve, write_config
from tests.support import NO_TLS

ALIKE = 0.15
"""By how much of it a measured value may be away from the simulated one."""

_FIRST, _LATER = len("<user>\n<assistant>"), len("\n<user>\n<assistant>")
"""Tokens of the chat template around the first message, and around each that comes later."""


@dataclass(frozen=True, slots=True)
class Plan:
    """So many chats at once, each of so many turns, on so many engines; times in seconds.

    A message has half of `prompt` tokens and up to once more, an answer the same of `answer`.
    Before each turn a chat pauses for up to twice `think`, so that chats do not go in step.
    """

    replicas: int
    chats: int
    turns: int = 8
    prompt: int = 200
    answer: int = 60
    think: float = 1.0
    step: float = 0.04
    prefill: float = 0.001
    batch: int = 8
    cache: int = 12_000

    @property
    def max_running(self) -> int:
        """As a server has it by itself."""
        return most_running(self.replicas, self.batch)

    def script(self, seed: int) -> "Script":
        """What each chat does, the same for the cluster and the simulation."""
        draw = random.Random(seed)
        return [
            [
                Said(
                    draw.randint(self.prompt // 2, self.prompt * 3 // 2),
                    draw.randint(self.answer // 2, self.answer * 3 // 2),
                    draw.uniform(0, 2 * self.think),
                )
                for _ in range(self.turns)
            ]
            for _ in range(self.chats)
        ]


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens that a message makes the prompt longer than what was said; those of its answer."""

    prompt: int
    answer: int
    pause: float


Script = Sequence[Sequence[Said]]


@dataclass(slots=True)
class Turn:
    """What was seen of an answer."""

    sent: float
    first: float = 0.0
    ended: float = 0.0
    usage: Mapping[str, int] = field(default_factory=dict)
    cached: int = 0
    text: str = ""


def measured(plan: Plan, scripts: Sequence[Script]) -> report.Json:
    """Start a cluster and a server, and have the chats of each script; means of the scripts.

    `transport`: what the first token of an idle engine takes longer than its step, in seconds.
    """
    model = f"routed-{os.getpid()}"
    options = {
        "step": plan.step,
        "prefill_token": plan.prefill,
        "batch": plan.batch,
        "cache": plan.cache,
    }
    entry = {
        "name": model,
        "backend": "paced",
        "path": str(PLUGINS),
        "options": options,
        "max_running": plan.max_running,
        "cluster": {"replicas": plan.replicas, "cpus": 0.1},
    }
    with a_site() as here:
        here.up(1, "--cpus", "2")
        port = port_of(serve(here, write_config(here, "routed", entry, window=0)))
        transport = asyncio.run(_transport(port, model, plan))
        seen = [asyncio.run(_chats(port, model, script)) for script in scripts]
    return {"transport": transport, **_means([_figures(turns) for turns in seen])}


def _figures(turns: Sequence[Turn]) -> dict[str, float]:
    prompt = sum(turn.usage["prompt_tokens"] for turn in turns)
    tokens = sum(turn.usage["completion_tokens"] for turn in turns)
    wall = max(turn.ended for turn in turns) - min(turn.sent for turn in turns)
    first = sorted(turn.first - turn.sent for turn in turns)
    return {
        "requests": len(turns),
        "prompt_tokens": prompt,
        "cached": sum(turn.cached for turn in turns) / prompt,
        "first_p50": statistics.median(first),
        "first_p99": first[int(len(first) * 0.99)],
        "tokens_s": tokens / wall,
    }


def _means(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(each[name] for each in figures) for name in figures[0]}


async def _transport(port: int, model: str, plan: Plan) -> float:
    """The median of several requests, one after the other."""
    text = [{"role": "user", "content": "x"}]
    async with _client(port) as http:
        turns = [await _turn(http, model, text, 1) for _ in range(11)]
    seconds = statistics.median(turn.first - turn.sent for turn in turns)
    return max(0.0, seconds - plan.step - plan.prefill * (_FIRST + 1))


def _client(port: int) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        limits=httpx2.Limits(max_connections=None),
        timeout=600,
        verify=NO_TLS,
    )


async def _chats(port: int, model: str, script: Script) -> Sequence[Turn]:
    async with _client(port) as http:
        await _turn(http, model, [{"role": "user", "content": "x"}], 1)  # connections, code paths
        chats = [_chat(http, model, turns) for turns in script]
        return [turn for turns in await asyncio.gather(*chats) for turn in turns]


async def _chat(http: httpx2.AsyncClient, model: str, script: Sequence[Said]) -> Sequence[Turn]:
    """One turn after the other, of random letters."""
    draw = random.Random()  # what was said before, too, is in the caches
    messages: list[dict[str, str]] = []
    turns: list[Turn] = []
    known = 0
    for said in script:
        await asyncio.sleep(said.pause)
        length = said.prompt - (_LATER if turns else _FIRST)
        content = "".join(draw.choices(string.ascii_letters, k=length))
        messages.append({"role": "user", "content": content})
        turn = await _turn(http, model, messages, said.answer)
        messages.append({"role": "assistant", "content": turn.text})
        if turn.usage["prompt_tokens"] != known + said.prompt:
            raise RuntimeError(f"a prompt of {turn.usage} is not of {known + said.prompt} tokens")
        known += said.prompt + said.answer
        turns.append(turn)
    return turns


async def _turn(
    http: httpx2.AsyncClient, model: str, messages: Sequence[dict[str, str]], tokens: int
) -> Turn:
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    turn = Turn(time.perf_counter())
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                if text and not turn.first:
                    turn.first = time.perf_counter()
                turn.text += text
            if usage := event.get("usage"):
                turn.usage = usage
                turn.cached = usage["prompt_tokens_details"]["cached_tokens"]
    turn.ended = time.perf_counter()
    return turn


def simulated(plan: Plan, script: Script, transport: float) -> dict[str, float]:
    """The same by the simulation; `transport`: seconds that a request takes to the queue."""
    clock = Clock()
    machine = Machine(
        step_s=plan.step,
        decode_s=0.0,
        prefill_s=plan.prefill,
        prefill_budget=None,
        batch=plan.batch,
        cache_tokens=plan.cache,
    )
    left: list[Iterator[Said]] = [iter(turns) for turns in script]

    def turn(chat: Chat) -> None:
        if said := next(left[chat.number], None):
            clock.at(clock.now + said.pause, lambda: ask(chat, said))

    def ask(chat: Chat, said: Said) -> None:
        cluster.send(chat, chat.ask(said.prompt, said.answer, clock.now), transport)

    def answered(chat: Chat, _: Request) -> None:
        turn(chat)

    draw = random.Random(1)
    route = router(POLICIES["prefix"], plan.cache // BLOCK, draw)
    cluster = Cluster(clock, machine, plan.replicas, route, plan.max_running, answered)
    for number in range(plan.chats):
        turn(Chat(number, 0, 0, plan.turns, draw))
    clock.run()
    requests = cluster.requests
    prompt = sum(request.prompt for request in requests)
    median, late = first_tokens(requests)
    wall = max(r.ended for r in requests) - min(r.sent for r in requests)
    return {
        "requests": len(requests),
        "prompt_tokens": prompt,
        "cached": sum(request.cached for request in requests) / prompt,
        "first_p50": median,
        "first_p99": late,
        "tokens_s": sum(request.said for request in requests) / wall,
    }


def compared(plan: Plan, rounds: int) -> report.Json:
    """Measured, simulated, and how far the one is from the other, as a part of the simulated."""
    scripts = [plan.script(seed) for seed in range(1, rounds + 1)]
    seen = measured(plan, scripts)
    expected = _means([simulated(plan, script, seen["transport"]) for script in scripts])
    away = {name: seen[name] / expected[name] - 1 for name in ("cached", "first_p50", "tokens_s")}
    return {
        **asdict(plan),
        "rounds": rounds,
        "measured": {name: round(value, 4) for name, value in seen.items()},
        "simulated": {name: round(value, 4) for name, value in expected.items()},
        "away": {name: round(value, 3) for name, value in away.items()},
        "alike": all(abs(value) <= ALIKE for value in away.values()),
    }
