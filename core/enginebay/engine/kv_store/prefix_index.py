"""Which of many sequences has the longest common prefix with another one."""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

_SIZE = 8

Item = TypeVar("Item")


def packed(token_ids: Sequence[int]) -> bytes:
    """Tokens as bytes, 8 each; ids of media are negative."""
    return array("q", token_ids).tobytes()


def count(tokens: bytes) -> int:
    """How many tokens these are."""
    return len(tokens) // _SIZE


def common(first: bytes, second: bytes) -> int:
    """The length of the common prefix, in tokens."""
    low, high = 0, min(count(first), count(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low * _SIZE : middle * _SIZE] == second[low * _SIZE : middle * _SIZE]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixIndex(Generic[Item]):
    """Items by a key and packed tokens.

    The tokens of a key are sorted as bytes. So a sequence's neighbours there are those that share
    the most with it, and what they share gets less with every further one.
    """

    def __init__(self) -> None:
        self._sorted: dict[bytes, list[bytes]] = {}
        self._items: dict[tuple[bytes, bytes], Item] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    def add(self, key: bytes, tokens: bytes, item: Item) -> Item | None:
        """Add an item; returns the one whose place it takes, if any."""
        before = self._items.get((key, tokens))
        if before is None:
            insort(self._sorted.setdefault(key, []), tokens)
        self._items[key, tokens] = item
        return before

    def remove(self, key: bytes, tokens: bytes, item: Item) -> None:
        """Remove an item, unless another one has its place."""
        if self._items.get((key, tokens)) is not item:
            return
        del self._items[key, tokens]
        there = self._sorted[key]
        del there[bisect_left(there, tokens)]
        if not there:
            del self._sorted[key]

    def longest(self, key: bytes, tokens: bytes) -> tuple[Item, int] | None:
        """The item that shares the most tokens with these, and how many; None if none does.

        Of those that share as many it is any.
        """
        there = self._sorted.get(key, [])
        at = bisect_left(there, tokens)
        shared = [(common(other, tokens), other) for other in there[max(0, at - 1) : at + 1]]
        length, best = max(shared, default=(0, b""))
        return (self._items[key, best], length) if length else None

    def longest_whole(self, key: bytes, tokens: bytes) -> tuple[Item, int] | None:
        """The longest item all of which is a prefix of these tokens, and its length."""
        there = self._sorted.get(key, [])
        while at := bisect_right(there, tokens):
            other = there[at - 1]
            length = common(other, tokens)
            if length == count(other):
                return self._items[key, other], length
            tokens = tokens[: length * _SIZE]
        return None

    def within(self, key: bytes, tokens: bytes, share: float) -> list[Item]:
        """The items of which at least this share is a prefix of these tokens."""
        there = self._sorted.get(key, [])
        at = bisect_left(there, tokens)
        found = []
        for way in (there[at:], reversed(there[:at])):
            for other in way:
                length = common(other, tokens)
                if not length:
                    break
                if length >= share * count(other):
                    found.append(self._items[key, other])
        return found
