"""Chats of several turns on simulated engines: new ones all the time, or a number of them at once.

`simulate` is for questions of size: chats of many lengths come at random times. `simulate_chats` is
what a measurement does: so many chats at once, all alike, each asking again when it is answered.
"""

import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.cluster_simulation_engines import BLOCK, Clock, Engine, Machine, Request
from benchmarks.cluster_simulation_routing import POLICIES, Router, router

_LONGEST_CHAT = 28_800
"""Tokens after which people begin a new one."""
_WARM = 0.25
"""The part of the time that is not counted, while caches fill."""


@dataclass(slots=True, eq=False)
class Chat:
    """Blocks that it shares with chats of the same system prompt, then blocks of its own."""

    number: int
    system: int
    system_tokens: int
    turns: int
    rng: random.Random
    tokens: int = 0
    """Of all that has been said."""
    _blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = self.system_tokens

    def blocks(self) -> Sequence[int]:
        """Hashes of the whole blocks of all that has been said."""
        shared = self.system_tokens // BLOCK
        for place in range(len(self._blocks), self.tokens // BLOCK):
            owner = -2 - self.system if place < shared else self.number
            self._blocks.append(hash((owner, place)))
        return self._blocks[: self.tokens // BLOCK]

    def ask(self, prompt: int, answer: int, now: float) -> Request:
        """The request of the next turn: so many tokens more, for an answer of so many."""
        self.turns -= 1
        self.tokens += prompt
        return Request(self.number, self.tokens, self.blocks(), answer, now)


class Cluster:
    """Engines behind a router and a queue: as a server admits requests, first come, first served.

    `on_end` is called when a request has ended. `requests` are all that were sent, in order.
    """

    def __init__(
        self,
        clock: Clock,
        machine: Machine,
        replicas: int,
        route: Router,
        max_running: int,
        on_end: Callable[[Chat, Request], None],
    ) -> None:
        self._clock = clock
        self._route = route
        self._free = max_running
        self._on_end = on_end
        self._waiting: deque[Request] = deque()
        self._loads = dict.fromkeys(range(replicas), 0)
        self._chats: dict[int, Chat] = {}
        self.requests: list[Request] = []
        self.engines = [Engine(machine, clock, self._ended, self._said) for _ in range(replicas)]

    def send(self, chat: Chat, request: Request, transport_s: float = 0.0) -> None:
        """A chat's request; it is at the queue after so many seconds."""
        self._chats[chat.number] = chat
        self.requests.append(request)
        self._clock.at(self._clock.now + transport_s, lambda: self._arrived(request))

    def _arrived(self, request: Request) -> None:
        self._waiting.append(request)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._free:
            self._free -= 1
            request = self._waiting.popleft()
            request.engine = self._route.choose(request, self._loads)
            self._loads[request.engine] += 1
            self.engines[request.engine].add(request)

    def _said(self, request: Request) -> Sequence[int]:
        chat = self._chats[request.chat]
        chat.tokens += request.answer
        return chat.blocks()

    def _ended(self, request: Request) -> None:
        self._free += 1
        self._loads[request.engine] -= 1
        self._admit()
        self._on_end(self._chats.pop(request.chat), request)


def first_tokens(requests: Sequence[Request]) -> tuple[float, float]:
    """Seconds from sending to the first token: median and 99th percentile."""
    seconds = sorted(request.first - request.sent for request in requests)
    return statistics.median(seconds), seconds[int(len(seconds) * 0.99)]


def most_running(replicas: int, batch: int) -> int:
    """How many requests a server admits unless it is told: what runs at once, and a quarter."""
    return replicas * (batch + batch // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of requests sent when caches were warm; `busiest` is the most that an engine got, in means.

    Times are in seconds, rates of the whole cluster. `index_blocks` are those that all indexes
    together hold in the end.
    """

    requests: int
    requests_s: float
    tokens_s: float
    cached: float
    first_p50: float
    first_p99: float
    busiest: float
    index_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """New chats at random times: `rate` a second and engine, for `seconds`.

    A chat has 1 to 20 turns, 5.5 in the mean, and one of `systems` system prompts of
    `system_tokens`, of which some are used far more often. People write 220 tokens and read answers
    of 250, in the mean, and take 2 seconds and 25 more in the mean for the next turn.
    """

    rate: float
    seconds: float
    systems: int = 8
    system_tokens: int = 1024
    seed: int = 1

    def chat(self, number: int) -> Chat:
        """Each is the same whatever becomes of the others."""
        rng = random.Random(f"{self.seed}/{number}")
        system = min(int(rng.paretovariate(1.1)) - 1, self.systems - 1)
        turns = 1 + min(19, int(rng.expovariate(1 / 5)))
        return Chat(number, system, self.system_tokens, turns, rng)

    def ask(self, chat: Chat, now: float) -> Request:
        """A chat's next turn."""
        prompt = 1 + int(chat.rng.lognormvariate(4.9, 1.0))
        answer = 1 + min(1500, int(chat.rng.lognormvariate(5.2, 0.8)))
        return chat.ask(prompt, answer, now)


def simulate(
    policy: str, replicas: int, arrivals: Arrivals, machine: Machine | None = None
) -> Figures:
    """What becomes of chats that come all the time, with one of `POLICIES`.

    All that was sent in `Arrivals.seconds` is answered; nobody asks after that.
    """
    machine = machine or Machine()
    clock = Clock()
    when = random.Random(arrivals.seed)
    rate = arrivals.rate * replicas
    chooser = random.Random(arrivals.seed + 1)
    route = router(POLICIES[policy], machine.cache_tokens // BLOCK, chooser)

    def answered(chat: Chat, _: Request) -> None:
        if chat.turns and chat.tokens < _LONGEST_CHAT:
            turn(chat, clock.now + 2 + chat.rng.expovariate(1 / 25))

    def turn(chat: Chat, time: float) -> None:
        if time < arrivals.seconds:
            clock.at(time, lambda: cluster.send(chat, arrivals.ask(chat, clock.now)))

    limit = most_running(replicas, machine.batch)
    cluster = Cluster(clock, machine, replicas, route, limit, answered)
    number, time = 0, when.expovariate(rate)
    while time < arrivals.seconds:
        turn(arrivals.chat(number), time)
        number, time = number + 1, time + when.expovariate(rate)
    clock.run()
    return _figures(cluster, arrivals.seconds, sum(len(index) for index in route.indexes))


def _figures(cluster: Cluster, seconds: float, index_blocks: int) -> Figures:
    begin = seconds * _WARM
    warm = [request for request in cluster.requests if request.sent >= begin]
    answered = [r.answer for r in cluster.requests if begin <= r.ended < seconds]
    median, late = first_tokens(warm)
    sent = Counter(request.engine for request in warm)
    return Figures(
        requests=len(warm),
        requests_s=round(len(answered) / (seconds - begin), 1),
        tokens_s=round(sum(answered) / (seconds - begin)),
        cached=round(sum(r.cached for r in warm) / sum(r.prompt for r in warm), 3),
        first_p50=round(median, 3),
        first_p99=round(late, 3),
        busiest=round(max(sent.values()) * len(cluster.engines) / len(warm), 2),
        index_blocks=index_blocks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFigures:
    """What a number of chats saw; times in seconds, `tokens_s` of all answers.

    `cached` is that part of all prompt tokens that prefix caches had; `by_engine` the requests
    that each engine got.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    cached: float
    first_p50: float
    first_p99: float
    wall_s: float
    tokens_s: float
    by_engine: tuple[int, ...]


def simulate_chats(
    replicas: int,
    chats: int,
    turns: int,
    prompt_tokens: int,
    answer_tokens: int,
    step_s: float,
    prefill_s_per_token: float,
    batch: int,
    cache_tokens: int,
    *,
    system_tokens: int = 0,
    prefill_budget: int | None = None,
    max_running: int | None = None,
    think_s: float = 0.0,
    transport_s: float = 0.0,
    policy: str = "prefix",
    remember: int | None = None,
    seed: int = 1,
) -> ChatFigures:
    """What so many chats see that all begin at once, each turn when the one before has ended.

    Each turn adds `prompt_tokens` to all that was said, after `system_tokens` that all chats have
    in common. A step of an engine takes `step_s` whatever runs, and `prefill_s_per_token` for each
    prompt token that is not cached: in the first step of a prompt, or in as many as
    `prefill_budget` tokens a step make of it. Caches are made of blocks of 32 tokens; those used
    longest ago go first. `max_running`: requests in engines, None: as a server does by itself.
    `think_s` passes before the next turn, `transport_s` before a request is in the queue; it counts
    for its first token. `remember` is `PrefixAffinity`'s; None: what fits the cache.
    """
    clock = Clock()
    machine = Machine(
        step_s=step_s,
        decode_s=0.0,
        prefill_s=prefill_s_per_token,
        prefill_budget=prefill_budget,
        batch=batch,
        cache_tokens=cache_tokens,
    )
    chooser = random.Random(seed)
    kept = cache_tokens // BLOCK if remember is None else remember
    route = router(POLICIES[policy], kept, chooser)

    def ask(chat: Chat) -> None:
        request = chat.ask(prompt_tokens, answer_tokens, clock.now)
        cluster.send(chat, request, transport_s)

    def answered(chat: Chat, _: Request) -> None:
        if chat.turns:
            clock.at(clock.now + think_s, lambda: ask(chat))

    limit = most_running(replicas, batch) if max_running is None else max_running
    cluster = Cluster(clock, machine, replicas, route, limit, answered)
    for number in range(chats):
        ask(Chat(number, 0, system_tokens, turns, chooser))
    clock.run()
    return _chat_figures(cluster)


def _chat_figures(cluster: Cluster) -> ChatFigures:
    requests = cluster.requests
    prompt, cached = sum(r.prompt for r in requests), sum(r.cached for r in requests)
    answer = sum(request.said for request in requests)
    wall = max(request.ended for request in requests)
    median, late = first_tokens(requests)
    got = Counter(request.engine for request in requests)
    return ChatFigures(
        requests=len(requests),
        prompt_tokens=prompt,
        cached_tokens=cached,
        answer_tokens=answer,
        cached=cached / prompt,
        first_p50=median,
        first_p99=late,
        wall_s=wall,
        tokens_s=answer / wall,
        by_engine=tuple(got[number] for number in range(len(cluster.engines))),
    )
