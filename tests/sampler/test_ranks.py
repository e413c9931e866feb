"""Ranks of tokens among all by their logits, in both samplers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay import TokenLogprob
from enginebay.engine.sampler.logprobs import RowLogprobs
from enginebay_hf.sampling import token_logprobs
from tests.effort import examples

VOCABULARY = 12
ROWS = st.lists(
    st.lists(st.integers(-4, 4), min_size=VOCABULARY, max_size=VOCABULARY), min_size=1, max_size=4
)


def by_numpy(logits: Any, tokens: list[int], top: int) -> list[TokenLogprob]:
    rows = zip(logits, tokens, strict=True)
    return [RowLogprobs(row, top).of(token, str, ranked=True) for row, token in rows]


def by_torch(logits: Any, tokens: list[int], top: int) -> list[TokenLogprob]:
    rows = torch.from_numpy(logits)
    return token_logprobs(rows, torch.tensor(tokens), [top] * len(tokens), str, ranked=True)


@pytest.mark.parametrize("entries", [by_numpy, by_torch])
@examples(60)
@given(rows=ROWS, data=st.data())
def test_the_rank_of_a_token_is_its_place_among_all(entries: Any, rows: Any, data: Any) -> None:
    # FIX-14 VLLM-97
    logits = np.asarray(rows, dtype=np.float32)
    tokens = data.draw(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=len(rows), max_size=len(rows))
    )
    order = np.argsort(-logits, axis=1, kind="stable").tolist()  # ties in the order of ids
    expected = [row.index(token) + 1 for row, token in zip(order, tokens, strict=True)]
    for top in (0, 3):
        assert [entry.rank for entry in entries(logits, tokens, top)] == expected


def test_sampled_tokens_have_none() -> None:
    entry = RowLogprobs(np.zeros(4, np.float32), 1).of(2, str)
    assert entry.rank is None
