"""Which engine gets a request: the ways that the simulation compares."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.cluster_simulation_engines import BLOCK, Request
from enginebay import PrefixAffinity

Loads = Mapping[int, int]
"""The requests that each engine has, running or waiting there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to choose.

    `weight` is `PrefixAffinity`'s; with `prefix`. `fronts` servers choose, each with an index of
    its own. A chat's requests go to any of them, or if `sticky` to one. Servers that share one
    index choose as one server does.
    """

    kind: str
    weight: int = 300
    fronts: int = 1
    sticky: bool = False


POLICIES: Mapping[str, Policy] = {
    "random": Policy(kind="random"),
    "two choices": Policy(kind="two choices"),
    "chat hash, bounded": Policy(kind="chat hash"),
    "longest prefix": Policy(kind="prefix", weight=0),
    "prefix": Policy(kind="prefix"),
    "prefix, 2 fronts": Policy(kind="prefix", fronts=2),
    "prefix, 4 fronts": Policy(kind="prefix", fronts=4),
    "prefix, 8 fronts": Policy(kind="prefix", fronts=8),
    "prefix, 8 fronts, sticky": Policy(kind="prefix", fronts=8, sticky=True),
}
"""`prefix` is what a server does: one index, shared by all fronts if there are several."""


class Router(ABC):
    """Chooses engines, and may remember what it chose."""

    indexes: tuple[PrefixAffinity[int], ...] = ()

    @abstractmethod
    def choose(self, request: Request, loads: Loads) -> int:
        """The number of the engine that gets it."""


def router(policy: Policy, remember: int, rng: random.Random) -> Router:
    """One that follows a policy; `remember` is `PrefixAffinity`'s."""
    match policy.kind:
        case "random":
            return Random(rng)
        case "two choices":
            return TwoChoices(rng)
        case "chat hash":
            return ChatHash()
        case "prefix":
            return Prefix(policy, remember, rng)
    raise ValueError(f"no policy is called {policy.kind!r}")


class Random(Router):
    """Any engine, whatever it does."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: Request, loads: Loads) -> int:
        """Each with the same chance."""
        return self._rng.randrange(len(loads))


class TwoChoices(Router):
    """The less busy one of any two: what Ray Serve does unless told otherwise."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: Request, loads: Loads) -> int:
        """The first of two that are equal."""
        return min(self._rng.sample(range(len(loads)), 2), key=loads.__getitem__)


class ChatHash(Router):
    """A chat's own engine, or the next one in the chat's own order if that is too busy.

    Too busy are 1.25 times the mean, and at least 8 requests: "consistent hashing with bounded
    loads". Needs clients that say which chat a request is of.
    """

    def choose(self, request: Request, loads: Loads) -> int:
        """The first in the chat's order below the bound."""
        bound = max(8, 1.25 * (sum(loads.values()) + 1) / len(loads))
        free = (engine for engine, load in loads.items() if load < bound)
        return min(free, key=lambda engine: hash((request.chat, engine)))


class Prefix(Router):
    """The product's `PrefixAffinity`, in one server or several."""

    def __init__(self, policy: Policy, remember: int, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self.indexes = tuple(
            PrefixAffinity(block=BLOCK, remember=remember, weight=policy.weight)
            for _ in range(policy.fronts)
        )

    def choose(self, request: Request, loads: Loads) -> int:
        """The best one for the front that the request came to."""
        if self._policy.sticky:
            index = self.indexes[request.chat % len(self.indexes)]
        else:
            index = self._rng.choice(self.indexes)
        chosen = index.rank(request.blocks, loads)[0]
        index.note(request.blocks, chosen)
        return chosen
