"""Attention over pages against the definition of attention, one query at a time."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from enginebay_exllamav2.paged_attention import paged_attention

PAGE, PAGES = 8, 20


def naive(
    query: Tensor, keys: Tensor, values: Tensor, position: int, window: int, softcap: float
) -> Tensor:
    """`[heads, head_dim]` of one query at `position`; keys are `[tokens, kv_heads, head_dim]`."""
    heads, size = query.shape
    groups = heads // keys.shape[1]
    first = max(0, position - window) if window >= 0 else 0
    mixed = []
    for head in range(heads):
        seen = keys[first : position + 1, head // groups].double()
        scores = seen @ query[head].double() / math.sqrt(size)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        mixed.append(scores.softmax(0) @ values[first : position + 1, head // groups].double())
    return torch.stack(mixed)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    queries=st.sampled_from([1, 2, 8, 9, 17]),
    heads=st.sampled_from([(2, 2), (4, 2), (6, 1)]),
    window=st.sampled_from([-1, 0, 3, 12]),
    softcap=st.sampled_from([0.0, 2.0]),
    appends=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_attention_over_scattered_pages_is_attention(
    lengths: list[int],
    queries: int,
    heads: tuple[int, int],
    window: int,
    softcap: float,
    appends: bool,
    seed: int,
) -> None:
    random = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    own, shared = heads
    k_cache, v_cache = numbers(PAGES, PAGE, shared, 4), numbers(PAGES, PAGE, shared, 4)
    table = torch.randperm(PAGES, generator=random)[: 6 * len(lengths)].view(len(lengths), 6)
    q = numbers(len(lengths), queries, own, 4)
    new: dict[str, Any] = {}
    told = list(lengths)
    if appends:
        new = {name: numbers(len(lengths), queries, shared, 4) for name in ("k", "v")}
    else:
        told = [length + queries for length in lengths]
    mixed = paged_attention(
        q,
        k_cache,
        v_cache,
        cache_seqlens=torch.tensor(told, dtype=torch.int32),
        block_table=table.int(),
        window_size=(window, window),
        softcap=softcap,
        **new,
    )
    assert mixed.shape == q.shape
    assert mixed.is_contiguous()  # exllamav2 takes views of it
    for row, length in enumerate(lengths):
        keys, values = (cache[table[row]].flatten(0, 1) for cache in (k_cache, v_cache))
        if appends:
            assert torch.equal(keys[length : length + queries], new["k"][row])
            assert torch.equal(values[length : length + queries], new["v"][row])
        for step in range(queries):
            expected = naive(q[row, step], keys, values, length + step, window, softcap)
            torch.testing.assert_close(mixed[row, step].double(), expected, atol=1e-5, rtol=1e-4)


def test_queries_that_are_no_text_see_each_other() -> None:
    cache = torch.randn(2, 2, PAGE, 1, 4, generator=torch.Generator().manual_seed(0))
    q = torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(1))
    tables = {"cache_seqlens": torch.tensor([10]), "block_table": torch.tensor([[1, 0]])}
    mixed = paged_attention(q, *cache, **tables, causal=False)
    keys, values = (half[[1, 0]].flatten(0, 1) for half in cache)
    for step in range(3):
        expected = naive(q[0, step], keys, values, 9, -1, 0.0)
        torch.testing.assert_close(mixed[0, step].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_what_stands_in_unused_places_does_not_matter(softcap: float) -> None:
    """In float16, as on a GPU: places behind a sequence's end hold what was there before."""
    random = torch.Generator().manual_seed(3)
    cache = torch.randn(2, 3, PAGE, 2, 8, generator=random).half()
    q = torch.randn(2, 1, 4, 8, generator=random).half()
    tables = {
        "cache_seqlens": torch.tensor([9, 3], dtype=torch.int32),
        "block_table": torch.tensor([[2, 1], [0, 0]], dtype=torch.int32),
    }
    before = paged_attention(q, *cache, **tables, softcap=softcap)
    cache[:, 1, 1:] = 60000.0
    cache[:, 0, 3:] = -60000.0
    assert torch.equal(before, paged_attention(q, *cache, **tables, softcap=softcap))


def test_many_queries_are_capped_in_parts() -> None:
    """A cap far above all scores changes none."""
    random = torch.Generator().manual_seed(5)
    cache = torch.randn(2, 50, PAGE, 2, 8, generator=random)
    q = torch.randn(1, 300, 4, 8, generator=random)
    tables = {"cache_seqlens": torch.tensor([390]), "block_table": torch.arange(50)[None]}
    capped = paged_attention(q, *cache, **tables, softcap=1e4)
    torch.testing.assert_close(capped, paged_attention(q, *cache, **tables), atol=1e-4, rtol=0)
