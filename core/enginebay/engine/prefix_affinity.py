"""Which of several engines should get a prompt: the one that has computed most of it already,
unless it is too busy.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Generic, TypeVar
from zlib import crc32

EngineT = TypeVar("EngineT", bound=Hashable)


def block_hashes(tokens: Sequence[int], size: int, salt: str = "") -> list[int]:
    """A hash for every whole block of `size` tokens, each of the prompt up to its end.

    They are the same in every process of one version of Python. Prompts of different salts have no
    hash in common.
    """
    state = crc32(salt.encode(errors="surrogatepass")) if salt else 0
    hashes = []
    for start in range(0, len(tokens) - size + 1, size):
        state = hash((state, tuple(tokens[start : start + size])))
        hashes.append(state)
    return hashes


class PrefixAffinity(Generic[EngineT]):
    """Remembers which prompts each engine was given last, and ranks engines for the next one.

    An engine costs the tokens of the prompt that it lacks, plus `weight` for each request that runs
    there: so a long prompt goes to the engine that knows it, even if a few more requests run there,
    and a system prompt that all requests share does not draw all of them to one engine. Of each
    engine the last `remember` blocks of `block` tokens are remembered: about what its prefix cache
    holds. Not to be used by several threads.
    """

    def __init__(self, *, block: int = 32, remember: int = 8192, weight: int = 300) -> None:
        self.block = block
        self._remember = remember
        self._weight = weight
        self._holders: defaultdict[int, set[EngineT]] = defaultdict(set)
        self._blocks: dict[EngineT, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        """How many different blocks are remembered."""
        return len(self._holders)

    def hashes(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """What the other methods call a prompt."""
        return block_hashes(tokens, self.block, salt)

    def matched(self, hashes: Iterable[int]) -> dict[EngineT, int]:
        """How many blocks of a prompt's beginning each engine was given; those with any."""
        depth: dict[EngineT, int] = {}
        alive: Set[EngineT] = frozenset()
        number = 0
        for number, block in enumerate(hashes, 1):
            holders: Set[EngineT] = self._holders.get(block, frozenset())
            still = holders if number == 1 else alive & holders
            depth.update(dict.fromkeys(alive - still, number - 1))  # few, where engines are many
            alive = still
            if not alive:
                break
        depth.update(dict.fromkeys(alive, number))
        return depth

    def rank(self, hashes: Sequence[int], loads: Mapping[EngineT, int]) -> list[EngineT]:
        """All engines, the best one first; `loads` are the requests that run on each.

        Of equals the hash of the prompt and the engine decides, so that servers that know nothing
        of each other agree where an engine's name hashes alike (as ints do; str only with the same
        PYTHONHASHSEED).
        """
        depth = self.matched(hashes)
        last = hashes[-1] if hashes else 0

        def cost(engine: EngineT) -> tuple[int, int]:
            known = depth.get(engine, 0) * self.block
            return self._weight * loads[engine] - known, hash((last, engine))

        return sorted(loads, key=cost)

    def note(self, hashes: Iterable[int], engine: EngineT) -> None:
        """An engine was given this prompt."""
        blocks = self._blocks.setdefault(engine, OrderedDict())
        for block in hashes:
            blocks[block] = None
            blocks.move_to_end(block)
            self._holders[block].add(engine)
        while len(blocks) > self._remember:
            self._drop(blocks.popitem(last=False)[0], engine)

    def forget(self, engine: EngineT) -> None:
        """An engine is gone, or has lost its cache."""
        for block in self._blocks.pop(engine, ()):
            self._drop(block, engine)

    def _drop(self, block: int, engine: EngineT) -> None:
        holders = self._holders[block]
        holders.discard(engine)
        if not holders:
            del self._holders[block]
