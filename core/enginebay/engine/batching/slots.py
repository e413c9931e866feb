"""The prefix cache: which tokens each slot holds, which prefixes to reuse or evict.

A slot that no sequence uses keeps its tokens until the room is needed, so that a prompt sharing a
prefix with an earlier one is only prefilled where they differ.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from enginebay.engine.batching.kv_saver import KvSaver
from enginebay.engine.batching.runner import Runner

_BLOCK = 256
_WORTH_COPYING = 8  # tokens; a prefix that all prompts have, a BOS token say, is soon computed


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix of two lists."""
    length = min(len(first), len(second))
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        if first[start:end] != second[start:end]:
            return next(at for at in range(start, end) if first[at] != second[at])
    return length


@dataclass(slots=True, eq=False)
class _Slot:
    token_ids: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    key: Hashable = None
    used: bool = False
    released_at: int = 0


class Slots:
    """Bookkeeping for a runner's KV cache; changes are applied to both.

    A cell holds one token; slots that share keys and values share cells.
    """

    def __init__(self, runner: Runner[Any, Any], saver: KvSaver | None = None) -> None:
        """`saver` is told what idle slots are about to forget."""
        self._runner = runner
        self._saver = saver
        self._memory = runner.memory
        self._slots = [_Slot() for _ in range(runner.memory.slots)]
        self._references: Counter[int] = Counter()
        self._cell_ids = count()
        self._clock = count(1)

    @property
    def free_tokens(self) -> int:
        """Free cells."""
        return self._memory.tokens - len(self._references)

    @property
    def used_tokens(self) -> int:
        """Tokens that running sequences hold; shared ones count once."""
        used = [slot.cells for slot in self._slots if slot.used]
        return len(set().union(*used)) if self._memory.shares else sum(map(len, used))

    @property
    def idle(self) -> list[int]:
        """Slots that no sequence uses."""
        return [index for index, slot in enumerate(self._slots) if not slot.used]

    def tokens(self, index: int) -> Sequence[int]:
        """The tokens of a slot."""
        return self._slots[index].token_ids

    def acquire(
        self, token_ids: Sequence[int], key: Hashable, headroom: int, reuse: int | None = None
    ) -> int | None:
        """A slot for a sequence, with the longest cached prefix.

        The prefix never includes the last token, which must be run for its logits, nor tokens after
        the first `reuse`, if given. None if there is no slot, or no room for all tokens and
        `headroom` more beside the slots in use.
        """
        wanted = token_ids if reuse is None else token_ids[: reuse + 1]
        for source, target, kept in self._ways(wanted, key):
            in_place = source == target
            shared = kept if in_place or self._memory.shares else 0
            held = self._slots[source].cells[: kept if in_place else None] if kept else []
            if self._can_make_room(len(token_ids) - shared + headroom, held):
                if in_place and kept and self._holds(source, token_ids):
                    self.cut(target, kept)  # the same prompt: its last answer is not missed
                self._take(target, kept if in_place else 0)
                if kept and not in_place:
                    self._make_room(kept - shared, keep=source)
                    self._copy(source, target, kept)
                self._slots[target].key = key
                return target
        return None

    def restore(
        self,
        token_ids: Sequence[int],
        key: Hashable,
        headroom: int,
        tokens: int,
        restore: Callable[[int], bool],
    ) -> int | None:
        """As `acquire`, with the first `tokens` brought into an empty slot by `restore`.

        None, too, if that is False: it could not.
        """
        target = self._emptiest()
        if target is None or not self._can_make_room(len(token_ids) + headroom):
            return None
        self._take(target, 0)
        self._make_room(tokens)
        if not restore(target):
            self._runner.cut(target, 0)
            self._slots[target].used = False
            return None
        self.extend(target, token_ids[:tokens])
        self._slots[target].key = key
        return target

    def prefix(self, token_ids: Sequence[int], key: Hashable) -> int:
        """How many of these tokens a slot holds, used or not."""
        return self._longest_prefix(token_ids, key)[1]

    def fork(self, source: int) -> int | None:
        """A slot with a copy of `source`; None if there is no slot or no room."""
        held = len(self._slots[source].token_ids)
        needed = 0 if self._memory.shares else held
        target = self._emptiest()
        if target is None or not self._can_make_room(needed + 1):
            return None
        self._take(target, 0)
        self._make_room(needed)
        self._copy(source, target, held)
        self._slots[target].key = self._slots[source].key
        return target

    def extend(self, index: int, token_ids: Sequence[int]) -> None:
        """Record tokens that the model has run in a slot."""
        slot = self._slots[index]
        slot.token_ids += token_ids
        cells = [next(self._cell_ids) for _ in token_ids]
        slot.cells += cells
        for cell in cells:  # nobody else has them yet
            self._references[cell] = 1

    def release(self, index: int) -> None:
        """Release a sequence's slot but keep its tokens cached."""
        self._slots[index].used = False
        self._slots[index].released_at = next(self._clock)
        if not self._memory.chunks:
            self.cut(index, 0)

    def evict(self, keep: int | None = None) -> bool:
        """Evict the slot that has been idle longest, except `keep`; False if there is none."""
        held = [i for i in self.idle if self._slots[i].token_ids and i != keep]
        if not held:
            return False
        self._lose(min(held, key=lambda i: self._slots[i].released_at), 0)
        return True

    def cut(self, index: int, tokens: int) -> None:
        """Truncate a slot to its first `tokens`."""
        slot = self._slots[index]
        if len(slot.token_ids) == tokens:
            return
        self._runner.cut(index, tokens)
        for cell in slot.cells[tokens:]:
            if self._references[cell] == 1:
                del self._references[cell]
            else:
                self._references[cell] -= 1
        del slot.token_ids[tokens:], slot.cells[tokens:]
        if not tokens:
            slot.released_at = 0  # empty slots are used before cached ones

    @property
    def cached(self) -> list[tuple[int, Sequence[int], Hashable]]:
        """Number, tokens and key of the idle slots that hold some, the last used one first."""
        held = [i for i in self.idle if self._slots[i].token_ids]
        held.sort(key=lambda i: -self._slots[i].released_at)
        return [(i, self._slots[i].token_ids, self._slots[i].key) for i in held]

    def clear(self) -> None:
        """Empty and release every slot."""
        self._runner.clear()
        self._slots = [_Slot() for _ in self._slots]
        self._references.clear()

    def _take(self, index: int, tokens: int) -> None:
        """Use an idle slot for a sequence, with its first `tokens`."""
        self._lose(index, tokens)
        self._slots[index].used = True

    def _lose(self, index: int, tokens: int) -> None:
        """Truncate an idle slot; what it forgets may be saved before."""
        slot = self._slots[index]
        if self._saver and slot.token_ids:
            self._saver.losing(index, slot.token_ids, slot.key, tokens)
        self.cut(index, tokens)

    def _holds(self, index: int, token_ids: Sequence[int]) -> bool:
        """Whether a slot begins with all of these tokens."""
        return self._slots[index].token_ids[: len(token_ids)] == [*token_ids]

    def _emptiest(self) -> int | None:
        """The idle slot whose tokens are missed least; None if there is none."""
        return min(self.idle, key=lambda i: (self._staleness(i), i), default=None)

    def _ways(self, token_ids: Sequence[int], key: Hashable) -> Iterator[tuple[int, int, int]]:
        """Placement options, best first: source of the prefix, slot, prefix length."""
        idle = self.idle
        if not idle:
            return
        source, kept = self._longest_prefix(token_ids, key)
        target = min(idle, key=lambda i: (bool(kept) and i == source, self._staleness(i), i))
        if kept:
            # A slot that would lose most of what it remembers is copied from instead, if it can be.
            if source in idle and 2 * kept >= len(self._slots[source].token_ids):
                yield source, source, kept
            if kept >= _WORTH_COPYING:
                yield source, target, kept
                if source in idle:
                    yield source, source, kept
        yield target, target, 0

    def _staleness(self, index: int) -> int:
        """Idle slots in order of use: empty ones, then those idle longest, lower numbers first."""
        return 0 if self._memory.neighbours else self._slots[index].released_at

    def _longest_prefix(self, token_ids: Sequence[int], key: Hashable) -> tuple[int, int]:
        """The slot with the longest usable common prefix with `token_ids`, and its length."""
        usable = [
            (self._usable(slot.token_ids, token_ids) if slot.key == key else 0, -index)
            for index, slot in enumerate(self._slots)
        ]
        kept, index = max(usable)
        return -index, kept

    def _usable(self, held: list[int], wanted: Sequence[int]) -> int:
        if not held or not self._memory.chunks:
            return 0
        common = min(common_prefix(held, wanted), len(wanted) - 1)
        return common if self._memory.cuts or common == len(held) else 0

    def _copy(self, source: int, target: int, tokens: int) -> None:
        self._runner.copy(source, target, tokens)
        slot = self._slots[target]
        slot.token_ids = self._slots[source].token_ids[:tokens]
        if self._memory.shares:
            slot.cells = self._slots[source].cells[:tokens]
        else:
            slot.cells = [next(self._cell_ids) for _ in range(tokens)]
        self._references.update(slot.cells)

    def _can_make_room(self, tokens: int, held: Sequence[int] = ()) -> bool:
        """Whether there is room beside the slots in use and `held` if all others are evicted."""
        if self.free_tokens >= tokens:
            return True
        used = (slot.cells for slot in self._slots if slot.used)
        return self._memory.tokens - len(set(held).union(*used)) >= tokens

    def _make_room(self, tokens: int, keep: int | None = None) -> None:
        while self.free_tokens < tokens and self.evict(keep):
            pass
