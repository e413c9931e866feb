"""Engines that compute nothing: when a batching engine with a prefix cache would have answered.

An engine steps: each step gives a token to every running answer whose prompt is computed, and
computes as much of the other prompts as fits. Steps that are alike are taken together, so that a
thousand engines can be simulated.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

BLOCK = 32
"""Tokens of a block of the prefix caches, and of the router's index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an engine can do. The default is about an 8-billion model on one card of 24 GB.

    A step takes `step_s` seconds, `decode_s` more for each answer that gets its next token, and
    `prefill_s` more for each prompt token, of which one step takes `prefill_budget` at most; None:
    all there are. `batch` answers run at a time. `cache_tokens` are the size of the prefix cache.
    """

    step_s: float = 0.020
    decode_s: float = 0.00015
    prefill_s: float = 0.00016
    prefill_budget: int | None = 1024
    batch: int = 32
    cache_tokens: int = 60_000


@dataclass(slots=True, eq=False)
class Request:
    """A prompt of `prompt` tokens, its whole blocks, and the `answer` tokens that it gets.

    Times are in seconds: when it was sent, and got its first and its last token. `cached` prompt
    tokens were in the cache of `engine`. `chat` is the number of the chat that sent it.
    """

    chat: int
    prompt: int
    blocks: Sequence[int]
    answer: int
    sent: float
    engine: int = -1
    cached: int = 0
    first: float = math.nan
    ended: float = math.nan
    left: int = 0
    """Prompt tokens that have not been computed, once it runs."""
    said: int = 0


class Clock:
    """Simulated seconds: calls what is due, in the order of time and then of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call this then."""
        heapq.heappush(self._due, (time, next(self._order), action))

    def run(self) -> None:
        """Until nothing more is due."""
        while self._due:
            self.now, _, action = heapq.heappop(self._due)
            action()


class PrefixCache:
    """The last used blocks of prompts and answers, up to so many."""

    def __init__(self, blocks: int) -> None:
        self._size = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, blocks: Sequence[int]) -> int:
        """How many blocks of a prompt's beginning are there."""
        for number, block in enumerate(blocks):
            if block not in self._blocks:
                return number
        return len(blocks)

    def keep(self, blocks: Sequence[int]) -> None:
        """These have been used now; what was used longest ago makes room."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._size:
            self._blocks.popitem(last=False)


@dataclass(slots=True)
class _Steps:
    """Steps of one length, from a time on."""

    began: float
    length: float
    number: int

    @property
    def end(self) -> float:
        return self.began + self.length * self.number


@dataclass(slots=True, eq=False)
class Engine:
    """Answers requests in the order in which they came, up to `Machine.batch` at a time.

    A prompt is in the prefix cache as soon as it runs, and its answer as soon as that is whole. At
    least one token of each prompt is computed.
    """

    machine: Machine
    clock: Clock
    on_end: Callable[[Request], None]
    on_cached: Callable[[Request], Sequence[int]]
    """The whole blocks of a request's prompt and answer."""
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    cache: PrefixCache = field(init=False)
    _steps: _Steps | None = None
    _runs: int = 0

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.machine.cache_tokens // BLOCK)

    def add(self, request: Request) -> None:
        """It begins with the next step, if there is room for it."""
        self.waiting.append(request)
        if self._steps is None:
            self._steps = _Steps(self.clock.now, 0, 0)
            self.clock.at(self.clock.now, self._begin)  # after all others that come at this moment
        elif self._steps.number > 1 and len(self.running) < self.machine.batch:
            self._stop_after_this_step(self._steps)

    def _stop_after_this_step(self, steps: _Steps) -> None:
        done = max(1, math.ceil((self.clock.now - steps.began) / steps.length))
        if done < steps.number:
            steps.number = done
            self._schedule(steps)

    def _schedule(self, steps: _Steps) -> None:
        self._runs += 1
        run = self._runs
        self.clock.at(steps.end, lambda: self._end(run))

    def _begin(self) -> None:
        """Steps until somebody can begin or has ended."""
        while self.waiting and len(self.running) < self.machine.batch:
            self._admit(self.waiting.popleft())
        if not self.running:
            self._steps = None
            return
        self._steps = self._next_steps(self.machine)
        self._schedule(self._steps)

    def _next_steps(self, machine: Machine) -> _Steps:
        decoding = sum(not request.left for request in self.running)
        length = machine.step_s + machine.decode_s * decoding
        if decoding == len(self.running):
            shortest = min(request.answer - request.said for request in self.running)
            return _Steps(self.clock.now, length, shortest)
        return _Steps(self.clock.now, length + machine.prefill_s * self._prefill(machine), 1)

    def _prefill(self, machine: Machine) -> int:
        """Prompt tokens that the next step computes."""
        total = sum(request.left for request in self.running)
        budget = left = min(total, machine.prefill_budget or total)
        for request in self.running:
            part = min(request.left, left)
            request.left -= part
            left -= part
        return budget

    def _admit(self, request: Request) -> None:
        matched = self.cache.matched(request.blocks)
        request.cached = min(matched, (request.prompt - 1) // BLOCK) * BLOCK
        request.left = request.prompt - request.cached
        self.cache.keep(request.blocks)
        self.running.append(request)

    def _end(self, run: int) -> None:
        """The steps are over, unless others have been scheduled instead of them."""
        if run != self._runs or self._steps is None:
            return
        now, number = self.clock.now, self._steps.number
        self._steps = _Steps(now, 0, 0)
        still, ended = [], []
        for request in self.running:
            if not request.left:
                request.said += number
                if math.isnan(request.first):
                    request.first = now  # prompts end in a step that is taken by itself
            (ended if request.said >= request.answer else still).append(request)
        self.running = still
        for request in ended:
            request.ended = now
            self.cache.keep(self.on_cached(request))
            self.on_end(request)
        self.clock.at(now, self._begin)
