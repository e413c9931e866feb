"""Masks over logits: what they leave out cannot be sampled, what they leave can."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay import SamplingParams, allowed_tokens
from enginebay.engine.batching.runner import Mask
from enginebay_hf.masks import keep_to_masks
from enginebay_hf.sampler_state import SamplerState
from enginebay_hf.sampling import sample


def mask_of(allowed: set[int], vocabulary: int) -> Mask:
    mask = np.zeros((vocabulary + 31) // 32, np.uint32)
    for token_id in allowed:
        mask[token_id // 32] |= np.uint32(1 << token_id % 32)
    return mask.view(np.int32)


@given(
    vocabulary=st.integers(1, 130),
    rows=st.lists(st.none() | st.sets(st.integers(0, 129)), min_size=1, max_size=5),
)
def test_only_what_is_allowed_is_left(vocabulary: int, rows: list[set[int] | None]) -> None:
    logits = torch.randn(len(rows), vocabulary)
    before = logits.clone()
    masks = [
        None if row is None else mask_of({i for i in row if i < vocabulary}, vocabulary)
        for row in rows
    ]
    kept = keep_to_masks(logits, masks)
    assert torch.equal(logits, before)
    for index, mask in enumerate(masks):
        expected = before[index].clone()
        if mask is not None:
            expected[~torch.from_numpy(allowed_tokens(mask, vocabulary))] = -math.inf
        assert torch.equal(kept[index], expected)


def test_without_masks_nothing_is_copied() -> None:
    logits = torch.randn(2, 5)
    assert keep_to_masks(logits, [None, None]) is logits


@pytest.mark.parametrize("width", [32, 40, 64, 96])
def test_logits_may_be_wider_or_narrower_than_masks(width: int) -> None:
    mask = mask_of({3, 31, 33, 63}, 64)
    kept = keep_to_masks(torch.zeros(1, width), [mask])[0]
    assert kept.isfinite().nonzero().flatten().tolist() == [i for i in (3, 31, 33, 63) if i < width]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_banned_token_that_is_all_that_is_left_is_taken(temperature: float) -> None:
    logits = torch.tensor([[5.0, -math.inf, 3.0, math.nan]])
    for params, allowed in (
        (SamplingParams(temperature=temperature), {1}),
        (SamplingParams(temperature=temperature, allowed_token_ids=(0,)), {2}),
        (SamplingParams(temperature=temperature, logit_bias={2: -math.inf}, top_p=0.1), {2}),
        (SamplingParams(temperature=temperature), {1, 3}),  # one of them is no number
    ):
        token = sample(logits, [SamplerState(params)], [mask_of(allowed, 4)]).item()
        assert token == min(allowed)


def test_others_in_the_batch_draw_what_they_would() -> None:
    logits = torch.randn(4, 50)
    rows = [SamplingParams(seed=seed, top_k=seed * 5, min_p=0.01) for seed in range(4)]
    free = sample(logits, [SamplerState(row) for row in rows], [None] * 4)
    mask = mask_of({7, 9}, 50)
    mixed = sample(logits, [SamplerState(row) for row in rows], [None, mask, None, mask])
    assert mixed[[0, 2]].tolist() == free[[0, 2]].tolist()
    assert set(mixed[[1, 3]].tolist()) <= {7, 9}
