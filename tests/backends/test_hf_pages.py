"""Pages of keys and values: as many tokens as are promised always fit, whoever shares them."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.batching.runner import Chunk, Runner, RunnerMemory
from enginebay.engine.batching.slots import Slots
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.options import HFOptions
from enginebay_hf.packed.memory import LayerShape
from enginebay_hf.packed.pages import PagedMemory
from enginebay_hf.sizing import paged_sizes, usable_tokens
from tests.effort import examples

CAPACITY = 40
LAYERS = {
    0: LayerShape(1, 2, 2, torch.float32, torch.device("cpu")),
    1: LayerShape(3, 4, 4, torch.bfloat16, torch.device("cpu")),
    2: LayerShape(1, 2, 2, torch.float32, torch.device("cpu")),
}


class Recorder(Runner[Any, Any]):
    """Writes each token's id where its keys and values belong, and runs no model."""

    def __init__(self, *, slots: int, pages: int, page_size: int) -> None:
        self.pages = PagedMemory(
            LAYERS, slots=slots, capacity=CAPACITY, pages=pages, page_size=page_size
        )
        tokens = usable_tokens(slots, pages, page_size)
        self.memory = RunnerMemory(slots=slots, tokens=tokens, shares=True)

    def run(self, chunks: Sequence[Chunk]) -> Any:
        spans = [(c.slot, c.start, c.start + len(c.token_ids)) for c in chunks]
        self.pages.extend(spans)
        size = self.pages.page_size
        for chunk in chunks:
            for position, token in enumerate(chunk.token_ids, chunk.start):
                page = self.pages.tables[chunk.slot, position // size]
                for tensors in (self.pages.keys, self.pages.values):
                    for tensor in tensors.values():
                        tensor[page, position % size] = token

    def held(self, slot: int, tokens: int) -> list[set[float]]:
        """What the first tokens of a slot are, in all layers."""
        found: list[set[float]] = [set() for _ in range(tokens)]
        for tensors in (self.pages.keys, self.pages.values):
            for tensor in tensors.values():
                rows = tensor[self.pages.tables[slot].long()].flatten(0, 1)[:tokens]
                for position, row in enumerate(rows.flatten(1).tolist()):
                    found[position].update(row)
        return found

    def copy(self, source: int, target: int, tokens: int) -> None:
        self.pages.share(source, target, tokens)

    def cut(self, slot: int, tokens: int) -> None:
        self.pages.cut(slot, tokens)

    def clear(self) -> None:
        for slot in range(self.memory.slots):
            self.cut(slot, 0)

    def sampler(self, request: Any, index: int) -> Any:
        raise AssertionError("nothing is sampled here")

    def sample(self, logits: Any, rows: Any, samplers: Any, masks: Any) -> Any:
        raise AssertionError("nothing is sampled here")

    def force(self, logits: Any, row: int, sampler: Any, token_id: int) -> Any:
        raise AssertionError("nothing is forced here")

    def accept(self, sampler: Any, token_id: int) -> None:
        raise AssertionError("nothing is accepted here")

    def logprobs(self, logits: Any, rows: Any, token_ids: Any, top: int) -> Any:
        raise AssertionError("nothing is asked of logits here")


@examples(60)
@given(
    seed=st.integers(0, 10**9),
    slots=st.integers(1, 7),
    page_size=st.sampled_from([1, 2, 4, 8]),
    spare=st.integers(1, 30),
)
def test_what_the_scheduler_may_put_in_fits_and_stays(
    seed: int, slots: int, page_size: int, spare: int
) -> None:
    choose = random.Random(seed)
    runner = Recorder(slots=slots, pages=2 * slots + spare, page_size=page_size)
    memory = Slots(runner)
    used: list[int] = []
    for _ in range(60):
        action = choose.random()
        if action < 0.3:
            prompt = [choose.randint(1, 2) for _ in range(choose.randint(1, CAPACITY))]
            slot = memory.acquire(prompt, None, 0)
            if slot is not None:
                used.append(slot)
        elif used and action < 0.45:
            slot = memory.fork(choose.choice(used))
            if slot is not None:
                used.append(slot)
        elif used and action < 0.55:
            slot = choose.choice(used)
            memory.cut(slot, choose.randint(0, len(memory.tokens(slot))))
        elif used and action < 0.65:
            memory.release(used.pop(choose.randrange(len(used))))
        else:
            # As in a step: some of the slots in use, no more tokens than there is room for.
            chunks = []
            room = memory.free_tokens
            for slot in choose.sample(used, choose.randint(0, len(used))):
                held = len(memory.tokens(slot))
                tokens = choose.randint(0, min(room, CAPACITY - held))
                room -= tokens
                if tokens:
                    chunks.append(Chunk(slot, held, choose.choices([1, 2, 3], k=tokens)))
            runner.run(chunks)  # a MemoryFullError fails the test
            for chunk in chunks:
                memory.extend(chunk.slot, chunk.token_ids)
        for slot in range(slots):
            tokens = memory.tokens(slot)
            assert runner.held(slot, len(tokens)) == [{token} for token in tokens]
    memory.clear()
    assert runner.pages._tables.free == 2 * slots + spare - 1


def test_the_most_that_slots_can_waste_fits() -> None:
    """Each slot needs most of what it shares again, and one more page for a single token."""
    slots, size = 3, 8
    shared = [1] * (size - 1)
    tokens = len(shared) + 2 * slots
    pages = next(n for n in range(1, 100) if usable_tokens(slots, n, size) >= tokens)
    runner = Recorder(slots=slots, pages=pages, page_size=size)
    memory = Slots(runner)
    memory.acquire(shared, None, 0)
    runner.run([Chunk(0, 0, shared)])
    memory.extend(0, shared)
    assert [memory.fork(0) for _ in range(slots - 1)] == [1, 2]
    assert memory.free_tokens >= 2 * slots
    runner.run([Chunk(slot, len(shared), [2, 3]) for slot in range(slots)])
    for slot in range(slots):
        assert runner.held(slot, size + 1) == [*[{1}] * (size - 1), {2}, {3}]


def test_layers_that_do_not_go_into_pages() -> None:
    shape = LayerShape(1, 2, 2, torch.float32, torch.device("cpu"))
    other = LayerShape(1, 2, 2, torch.float32, torch.device("meta"))
    uneven = LayerShape(1, 2, 4, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="several devices"):
        PagedMemory({0: shape, 1: other}, slots=1, capacity=8, pages=4)
    with pytest.raises(ValueError, match="differ in size"):
        PagedMemory({0: shape, 1: uneven}, slots=1, capacity=8, pages=4)


@pytest.mark.parametrize("free_tokens", [None, 10_000, 2000, 900, 700])
@pytest.mark.parametrize("cache_tokens", [None, 600, 5000])
def test_sizes_promise_what_fits(
    free_tokens: int | None,
    cache_tokens: int | None,
    tiny_llama: Any,
) -> None:
    free = None if free_tokens is None else free_tokens * 100 * 2  # half of it is taken
    sizes = paged_sizes(
        Checkpoint(tiny_llama),
        HFOptions(cache_tokens=cache_tokens, max_batch_size=4),
        context_length=600,
        bytes_per_token=100,
        device="cpu",
        free=free,
        page_size=64,
    )
    least = cache_tokens or 600
    if free_tokens is not None and free_tokens < least + 128:
        assert sizes is None
        return
    assert sizes
    assert sizes.tokens == usable_tokens(sizes.slots, sizes.pages, 64) >= least
    assert sizes.capacity == 600
    assert free_tokens is None or sizes.pages * 64 <= free_tokens
    assert 1 <= sizes.slots <= 8
    assert sizes.slots == 8 or free_tokens is not None
