"""What of a cluster is full first, from what its parts cost; and what the index costs, measured."""

import random
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.cluster_simulation_engines import BLOCK
from enginebay import PrefixAffinity

_SYSTEM_TOKENS, _SYSTEMS = 1024, 8
_CHAT_TOKENS = 2048
"""Of each prompt of the measurement, after its system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCost:
    """A full index of so many engines, with the last `remember` blocks of each.

    `memory_bytes` by tracemalloc. `choose_s`: seconds of a core to hash a prompt of 3,072 tokens,
    rank the engines and note the best, the median of all that were asked.
    """

    engines: int
    remember: int
    memory_bytes: int
    choose_s: float


def _prompt(number: int) -> list[int]:
    """A chat's: one of the system prompts, then tokens of its own."""
    system = number % _SYSTEMS * _SYSTEM_TOKENS
    own = _SYSTEMS * _SYSTEM_TOKENS + number * _CHAT_TOKENS
    return [*range(system, system + _SYSTEM_TOKENS), *range(own, own + _CHAT_TOKENS)]


def measure_index(engines: int, remember: int, asked: int = 200) -> IndexCost:
    """Fill an index as a cluster does in which every engine knows every system prompt."""
    chats = engines * (remember * BLOCK // _CHAT_TOKENS + 1)
    tracemalloc.start()
    index: PrefixAffinity[int] = PrefixAffinity(block=BLOCK, remember=remember)
    for number in range(chats):
        index.note(index.hashes(_prompt(number)), number // _SYSTEMS % engines)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    rng = random.Random(1)
    loads = {engine: rng.randrange(10, 32) for engine in range(engines)}
    took = []
    for _ in range(asked):
        prompt = _prompt(rng.randrange(chats * 3 // 4, chats))
        began = time.perf_counter()
        hashes = index.hashes(prompt)
        index.note(hashes, index.rank(hashes, loads)[0])
        took.append(time.perf_counter() - began)
    return IndexCost(
        engines=engines,
        remember=remember,
        memory_bytes=memory,
        choose_s=sorted(took)[len(took) // 2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the parts of a cluster cost, measured with Ray 2.60 on two cores that were shared.

    `controller_base` and `controller_replica`: the part of a core that Serve's controller uses, and
    what each engine adds (measured up to 50). CPU of a front: `link_message_s` for a message of an
    engine's link, `front_token_s` for a token beside that, `front_request_s` for a request.
    `shared_pairs_s`: pairs of calls a second that an object which servers share answers beside
    everything else; one takes 2.6 ms then, and 10 ms the slowest in a hundred.
    `index_bytes`: the memory that the index may take, which is no measurement.
    """

    controller_base: float = 0.035
    controller_replica: float = 0.00065
    link_message_s: float = 0.0004
    front_token_s: float = 0.00005
    front_request_s: float = 0.005
    shared_pairs_s: float = 720.0
    index_bytes: float = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each engine does when it is as busy as it can be: nearly all it does is decode.

    `running` answers at a time get a token each `step_s`. `limit_pairs` are the pairs of calls of a
    request for limits that are shared: one for its key, one for its turn.
    """

    tokens_s: float = 1000.0
    requests_s: float = 4.0
    running: int = 25
    step_s: float = 0.02
    limit_pairs: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a cluster is set up.

    Engines send deltas each `window` seconds, or each step if that is longer. There is a front (a
    server) for each `engines_a_front`, or one. Several share limits and the index.
    """

    window: float = 0.0
    engines_a_front: int | None = None

    def fronts(self, engines: float) -> float:
        """How many there are."""
        return max(1.0, engines / self.engines_a_front) if self.engines_a_front else 1.0


SETUPS: Mapping[str, Setup] = {
    "one front": Setup(),
    "one front, `window: 0.1`": Setup(window=0.1),
    "a front for 8 engines": Setup(engines_a_front=8),
    "a front for 8 engines, `window: 0.1`": Setup(window=0.1, engines_a_front=8),
}

PARTS = ("controller", "links", "front", "limits", "placing", "index memory")
"""Serve's controller; what messages of links take of a front; a front with its links and all else;
the shared limits and queues; the index that places requests, its time and its memory.
"""


def shares(
    engines: float, setup: Setup, costs: Costs, load: Load, index: Sequence[IndexCost]
) -> dict[str, float]:
    """How full each of `PARTS` is: of one core, or of the memory for the index. 1 is full.

    With one front no limits are shared: their share is 0.
    """
    fronts = setup.fronts(engines)
    shared = fronts > 1
    has_some = 1 - (1 - 1 / fronts) ** load.running  # an engine for one front, in a step
    links = engines / max(load.step_s, setup.window) * has_some * costs.link_message_s
    requests, tokens = engines * load.requests_s, engines * load.tokens_s
    answers = tokens * costs.front_token_s + requests * costs.front_request_s
    choose_s = _between(index, engines, lambda cost: cost.choose_s)
    memory = _between(index, engines, lambda cost: cost.memory_bytes)
    return {
        "controller": costs.controller_base + costs.controller_replica * engines,
        "links": links,
        "front": links + answers / fronts,
        "limits": shared * requests * load.limit_pairs / costs.shared_pairs_s,
        "placing": requests * (choose_s + shared / costs.shared_pairs_s),
        "index memory": memory / costs.index_bytes,
    }


def _between(
    index: Sequence[IndexCost], engines: float, value: Callable[[IndexCost], float]
) -> float:
    """A measured value at another number of engines, along straight lines."""
    points = sorted((cost.engines, value(cost)) for cost in index)
    if len(points) == 1:
        return points[0][1] * engines / points[0][0]
    pairs = list(pairwise(points))
    (x0, y0), (x1, y1) = next((p for p in pairs if engines <= p[1][0]), pairs[-1])
    return max(0.0, y0 + (y1 - y0) * (engines - x0) / (x1 - x0))


def full_at(
    part: str, setup: Setup, costs: Costs, load: Load, index: Sequence[IndexCost]
) -> int | None:
    """The fewest engines with which a part is full; None if it is not with 100,000."""
    low, high = 0, 100_000
    if shares(high, setup, costs, load, index)[part] < 1:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if shares(middle, setup, costs, load, index)[part] < 1:
            low = middle
        else:
            high = middle
    return high
