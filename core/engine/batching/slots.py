"""Which tokens each slot of a model's memory holds: prefixes to reuse, room to make.

A slot that no sequence uses any more remembers its tokens until the room is needed, so that a
prompt which begins like an earlier one is prefilled only where they differ.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from core.engine.batching.runner import Runner

_BLOCK = 256
_WORTH_COPYING = 8  # tokens; a prefix that all prompts have, a BOS token say, is soon computed


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two lists have in common at their beginnings."""
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
    """Bookkeeping over the memory of a runner; what changes here is changed there.

    A cell is the place of one token; slots whose keys and values are shared share cells.
    """

    def __init__(self, runner: Runner[Any, Any]) -> None:
        self._runner = runner
        self._memory = runner.memory
        self._slots = [_Slot() for _ in range(runner.memory.slots)]
        self._references: Counter[int] = Counter()
        self._cell_ids = count()
        self._clock = count(1)

    @property
    def free_tokens(self) -> int:
        """Cells that hold nothing."""
        return self._memory.tokens - len(self._references)

    @property
    def used_tokens(self) -> int:
        """Tokens that running sequences hold; those that several share count once."""
        used = [slot.cells for slot in self._slots if slot.used]
        return len(set().union(*used)) if self._memory.shares else sum(map(len, used))

    @property
    def idle(self) -> list[int]:
        """Slots that no sequence uses."""
        return [index for index, slot in enumerate(self._slots) if not slot.used]

    def tokens(self, index: int) -> Sequence[int]:
        """What a slot holds."""
        return self._slots[index].token_ids

    def acquire(
        self, token_ids: Sequence[int], key: Hashable, headroom: int, reuse: int | None = None
    ) -> int | None:
        """A slot for a sequence, holding as many of its first tokens as can be had.

        Its last token is never among them, as that has to be run for its logits, nor are those
        behind the first `reuse`, if that is given. None if there is no slot, or no room for all of
        the tokens and `headroom` more beside the slots in use.
        """
        wanted = token_ids if reuse is None else token_ids[: reuse + 1]
        for source, target, kept in self._ways(wanted, key):
            in_place = source == target
            shared = kept if in_place or self._memory.shares else 0
            held = self._slots[source].cells[: kept if in_place else None] if kept else []
            if self._can_make_room(len(token_ids) - shared + headroom, held):
                self._slots[target].used = True
                self.cut(target, kept if in_place else 0)
                if kept and not in_place:
                    self._make_room(kept - shared, keep=source)
                    self._copy(source, target, kept)
                self._slots[target].key = key
                return target
        return None

    def fork(self, source: int) -> int | None:
        """A slot that holds all that `source` does; None if there is no slot or no room."""
        held = len(self._slots[source].token_ids)
        needed = 0 if self._memory.shares else held
        target = min(self.idle, key=lambda i: (self._staleness(i), i), default=None)
        if target is None or not self._can_make_room(needed + 1):
            return None
        self._slots[target].used = True
        self.cut(target, 0)
        self._make_room(needed)
        self._copy(source, target, held)
        self._slots[target].key = self._slots[source].key
        return target

    def extend(self, index: int, token_ids: Sequence[int]) -> None:
        """Note tokens that the model has run in a slot."""
        slot = self._slots[index]
        slot.token_ids += token_ids
        cells = [next(self._cell_ids) for _ in token_ids]
        slot.cells += cells
        self._references.update(cells)

    def release(self, index: int) -> None:
        """A sequence has left its slot, which is remembered."""
        self._slots[index].used = False
        self._slots[index].released_at = next(self._clock)
        if not self._memory.chunks:
            self.cut(index, 0)

    def evict(self, keep: int | None = None) -> bool:
        """Forget the slot that has been idle longest, but not `keep`; False if there is none."""
        held = [i for i in self.idle if self._slots[i].token_ids and i != keep]
        if not held:
            return False
        self.cut(min(held, key=lambda i: self._slots[i].released_at), 0)
        return True

    def cut(self, index: int, tokens: int) -> None:
        """Forget all but the first `tokens` of a slot."""
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
            slot.released_at = 0  # an empty slot is taken before any that remembers something

    def clear(self) -> None:
        """Empty and release every slot."""
        self._runner.clear()
        self._slots = [_Slot() for _ in self._slots]
        self._references.clear()

    def _ways(self, token_ids: Sequence[int], key: Hashable) -> Iterator[tuple[int, int, int]]:
        """Where a sequence can go, best first: source of its prefix, slot, tokens of the prefix."""
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
        """Idle slots with lower numbers are taken first: empty ones, then those idle longest."""
        return 0 if self._memory.neighbours else self._slots[index].released_at

    def _longest_prefix(self, token_ids: Sequence[int], key: Hashable) -> tuple[int, int]:
        """The slot that begins most like `token_ids`, and how many tokens of it can be used."""
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
        """Whether there is room beside the cells of slots in use, and `held`, all others gone."""
        if self.free_tokens >= tokens:
            return True
        used = (slot.cells for slot in self._slots if slot.used)
        return self._memory.tokens - len(set(held).union(*used)) >= tokens

    def _make_room(self, tokens: int, keep: int | None = None) -> None:
        while self.free_tokens < tokens and self.evict(keep):
            pass
