"""The paged KV cache of all layers; slots share pages until one of them writes."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from enginebay import MemoryFullError
from enginebay_hf.packed.memory import LayerShape

PAGE_SIZE = 256
"""Tokens of a page: the smallest that the kernels of flash-attention 2 read."""

SPARE = 0
"""A page of no slot: what is written there is never read again."""


class PageTables:
    """Which pages the tokens of each slot lie in, and how many slots use each page."""

    def __init__(self, *, slots: int, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._tables: list[list[int]] = [[] for _ in range(slots)]
        self._users = [0] * pages
        self._free = list(range(pages - 1, SPARE, -1))

    @property
    def free(self) -> int:
        """Pages that no slot uses."""
        return len(self._free)

    def pages(self, slot: int) -> Sequence[int]:
        """The pages of a slot, in the order of its tokens."""
        return self._tables[slot]

    def needed(self, spans: Sequence[tuple[int, int, int]]) -> int:
        """How many free pages `extend` takes for all of `spans`: slot, first token, end."""
        released: Counter[int] = Counter()
        total = 0
        for slot, start, end in spans:
            table = self._tables[slot]
            total += max(0, -(-end // self.page_size) - len(table))
            for page in table[start // self.page_size :]:
                if self._users[page] - released[page] > 1:
                    released[page] += 1
                    total += 1
        return total

    def extend(self, slot: int, start: int, end: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Pages of its own for the tokens from `start` to `end`.

        The pages that are new to the slot, and pairs of a page that it has used with others until
        now and the new one that takes its place.
        """
        table = self._tables[slot]
        fresh, copies = [], []
        for at in range(start // self.page_size, len(table)):
            if self._users[table[at]] > 1:
                fresh.append(self._take())
                copies.append((table[at], fresh[-1]))
                self._users[table[at]] -= 1
                table[at] = fresh[-1]
        while len(table) * self.page_size < end:
            fresh.append(self._take())
            table.append(fresh[-1])
        return fresh, copies

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let the empty slot `target` use the pages of the first `tokens` of `source`, too."""
        if self._tables[target]:
            raise ValueError(f"slot {target} is not empty")
        self._tables[target] = self._tables[source][: -(-tokens // self.page_size)]
        for page in self._tables[target]:
            self._users[page] += 1

    def cut(self, slot: int, tokens: int) -> int | None:
        """Drop the pages after the first `tokens`; the page they end in, if no other slot has it.

        None, too, if they fill their last page.
        """
        table = self._tables[slot]
        kept = -(-tokens // self.page_size)
        for page in table[kept:]:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
        del table[kept:]
        if tokens % self.page_size and self._users[table[-1]] == 1:
            return table[-1]
        return None

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page


class PagedMemory:
    """`keys[layer]` and `values[layer]` are `[pages, page_size, heads, size]`, zero at first.

    `tables` is `[slots, pages of a slot]` in int32 on the CPU: the first entries of a row are the
    slot's pages, the others some page or other. All layers must be on one device, with keys as
    large as values. `ValueError` if they are not, `torch.OutOfMemoryError` if there is no room.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerShape],
        *,
        slots: int,
        capacity: int,
        pages: int,
        page_size: int = PAGE_SIZE,
    ) -> None:
        devices = {layer.device for layer in layers.values()}
        if len(devices) > 1:
            raise ValueError("its layers are on several devices")
        if any(layer.key_size != layer.value_size for layer in layers.values()):
            raise ValueError("its keys and values differ in size")
        self.slots = slots
        self.capacity = capacity
        self.page_size = page_size
        self.device = devices.pop()
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.tables = torch.full((slots, -(-capacity // page_size)), SPARE, dtype=torch.int32)
        self._tables = PageTables(slots=slots, pages=pages, page_size=page_size)
        self._pools: list[Tensor] = []
        alike = defaultdict(list)
        for index, layer in layers.items():
            alike[layer].append(index)
        for layer, indices in alike.items():
            # One tensor for all layers of a kind, so that a page of all is copied at once.
            shape = (2, len(indices), pages, page_size, layer.heads, layer.key_size)
            pool = torch.zeros(shape, dtype=layer.dtype, device=layer.device)
            self._pools.append(pool)
            self.keys.update(zip(indices, pool[0], strict=True))
            self.values.update(zip(indices, pool[1], strict=True))

    def extend(self, spans: Sequence[tuple[int, int, int]]) -> None:
        """Pages to write tokens into: slot, first token, end; a slot at most once.

        `MemoryFullError`, and no change, if there are not enough.
        """
        for _, _, end in spans:
            if end > self.capacity:
                raise ValueError(f"{end} tokens do not fit into a slot of {self.capacity}")
        needed = self._tables.needed(spans)
        if needed > self._tables.free:
            raise MemoryFullError(f"{needed} pages are needed, {self._tables.free} are free")
        fresh: list[int] = []
        copies: list[tuple[int, int, int]] = []
        for slot, start, end in spans:
            new, copied = self._tables.extend(slot, start, end)
            if new:
                fresh += new
                self._show(slot, start // self.page_size)
            copies += [(*pair, start % self.page_size) for pair in copied]
        if fresh:
            # What others have left there might not be finite, and no kernel need skip it.
            index = torch.tensor(fresh, device=self.device)
            for pool in self._pools:
                pool.index_fill_(2, index, 0)
        for source, target, tokens in copies:
            for pool in self._pools:
                pool[:, :, target, :tokens] = pool[:, :, source, :tokens]

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let the empty slot `target` hold the first `tokens` of `source`, too."""
        self._tables.share(source, target, tokens)
        self._show(target, 0)

    def save(self, slot: int) -> Tensor:
        """A copy of a slot's pages, as bytes: pool by pool, keys before values."""
        index = torch.tensor(self._tables.pages(slot), device=self.device)
        parts = [pool.index_select(2, index) for pool in self._pools]
        return torch.cat([part.view(torch.uint8).flatten() for part in parts]).cpu()

    def restore(self, slot: int, state: Tensor, held: int, tokens: int) -> None:
        """Write the first `tokens` of such a copy of `held` tokens into an empty slot.

        `MemoryFullError`, and no change, if there are not enough pages.
        """
        whole = -(-held // self.page_size)
        shapes = [(*pool.shape[:2], whole, *pool.shape[3:]) for pool in self._pools]
        sizes = [
            prod(shape) * pool.itemsize for shape, pool in zip(shapes, self._pools, strict=True)
        ]
        parts = torch.split(state, sizes)
        self.extend([(slot, 0, tokens)])
        pages = self._tables.pages(slot)
        index = torch.tensor(pages, device=self.device)
        for pool, shape, part in zip(self._pools, shapes, parts, strict=True):
            saved = part.view(pool.dtype).view(shape)[:, :, : len(pages)]
            pool.index_copy_(2, index, saved.to(self.device))
        self.cut(slot, tokens)

    def cut(self, slot: int, tokens: int) -> None:
        """Forget all but the first `tokens` of a slot."""
        page = self._tables.cut(slot, tokens)
        if page is not None:
            for pool in self._pools:
                pool[:, :, page, tokens % self.page_size :] = 0

    def _show(self, slot: int, first: int) -> None:
        pages = self._tables.pages(slot)
        self.tables[slot, first : len(pages)] = torch.tensor(pages[first:], dtype=torch.int32)
