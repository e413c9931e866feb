"""REAL-10: rows of a large vocabulary, of which samplers look at parts, against plain ways."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import Row, RowSampler, SamplingParams
from enginebay.engine.sampler import truncation
from enginebay.engine.sampler.draw import kth_highest, place_by_weight, reachable
from enginebay.engine.sampler.temperature import normalized

SIZE = 9000
SEEDS = st.integers(0, 20)
SHAPES = st.sampled_from(["steep", "even", "ties"])
MASSES = st.sampled_from([0.0, 0.05, 0.5, 0.9, 0.99, 0.99999])


def row(seed: int, shape: str) -> Row:
    """Logits with maximum 0: a few likely tokens, all about as likely, or many equal ones."""
    chance = np.random.default_rng(seed)
    made = chance.standard_normal(SIZE)
    if shape == "steep":
        made -= 1.5 * np.log(np.arange(1, SIZE + 1))
    if shape == "ties":
        made = np.round(made * 2) / 2
    made -= made.max()
    return chance.permutation(made).astype(np.float32)


@given(seed=SEEDS, shape=SHAPES, count=st.sampled_from([1, 40, 511, 512, 8999, 9000]))
def test_few_more_values_than_asked_reach_the_kth(seed: int, shape: str, count: int) -> None:
    values = row(seed, shape)
    kth = kth_highest(values, count)
    assert kth <= np.sort(values)[-count]
    assert np.count_nonzero(values >= kth) >= count


CUTS: list[dict[str, Any]] = [
    {"top_k": 40},
    {"top_k": 2000, "top_p": 0.9},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"top_p": 0.9},
    {"min_p": 0.01},
    {"min_p": 1.0},
]


@pytest.mark.parametrize("params", CUTS, ids=str)
@given(seed=SEEDS, shape=SHAPES, temperature=st.sampled_from([0.1, 0.8, 1.5]))
def test_what_can_be_drawn(
    params: dict[str, Any], seed: int, shape: str, temperature: float
) -> None:
    logits, sampling = row(seed, shape), SamplingParams(temperature=temperature, **params)
    weights = np.exp(logits / np.float32(temperature))
    kept = np.ones(SIZE, np.bool_)
    if sampling.top_k:
        kept &= weights >= np.sort(weights)[-sampling.top_k]
    if sampling.top_p < 1:
        ordered = np.sort(weights[kept])[::-1]
        sums = np.cumsum(ordered, dtype=np.float64)
        kept &= weights >= ordered[np.searchsorted(sums, sampling.top_p * sums[-1])]
    kept &= weights >= sampling.min_p
    token_ids, found = reachable(logits, temperature, sampling)
    assert token_ids is not None
    np.testing.assert_array_equal(token_ids, np.flatnonzero(kept))
    np.testing.assert_array_equal(found, weights[kept])


@given(seed=SEEDS, shape=SHAPES, mass=MASSES)
def test_typical_keeps_the_fewest_that_have_the_mass(seed: int, shape: str, mass: float) -> None:
    logprobs = normalized(row(seed, shape).astype(np.float64))
    kept = truncation.typical(logprobs, mass)
    shares = np.exp(logprobs)
    away = np.abs(logprobs - np.sum(shares * logprobs))
    order = np.argsort(away, kind="stable")
    sums = np.cumsum(shares[order])
    assert shares[kept].sum() >= mass - 1e-9
    assert abs(int(kept.sum()) - int(np.searchsorted(sums, mass)) - 1) <= 1  # up to rounding
    assert away[kept].max() <= away[~kept].min() + 1e-9


@given(seed=SEEDS, shape=SHAPES, mass=MASSES)
def test_tail_free_leaves_out_the_same_as_over_all(seed: int, shape: str, mass: float) -> None:
    logprobs = normalized(row(seed, shape).astype(np.float64))
    order = np.argsort(-logprobs, kind="stable")
    sums = np.cumsum(np.abs(np.diff(np.exp(logprobs[order]), 2)))
    count = int(np.searchsorted(sums, mass * sums[-1], side="right")) + 1
    kept = truncation.tail_free(logprobs, mass)
    assert abs(int(kept.sum()) - count) <= 1  # up to rounding
    assert logprobs[kept].min() >= logprobs[~kept].max()


@given(seed=SEEDS, shape=SHAPES, uniform=st.floats(0, 1, exclude_max=True))
def test_a_draw_from_the_likeliest_on(seed: int, shape: str, uniform: float) -> None:
    weights = np.exp(row(seed, shape).astype(np.float64))
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order])
    place = int(np.flatnonzero(order == place_by_weight(weights, uniform))[0])
    assert sums[place] >= uniform * sums[-1] * (1 - 1e-12)
    assert sums[place] - weights[order[place]] <= uniform * sums[-1] * (1 + 1e-12)


@pytest.mark.parametrize(
    "params",
    [
        {"typical_p": 0.9},
        {"tfs": 0.9},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.4},
        {"smoothing_factor": 0.3},
        {"adaptive_target": 0.2},
        {"xtc_probability": 0.5},
        {"mirostat": 1},
        {"skew": 0.5},
    ],
    ids=str,
)
def test_the_row_of_a_model_stays_as_it_is(params: dict[str, Any]) -> None:
    """Samplers compute in memory of their own, since choices of one prompt share a row."""
    logits = row(1, "steep")
    before = logits.copy()
    sampler = RowSampler(
        SamplingParams(seed=1, temperature=0.8, **params),
        (),
        0,
        end_token_ids=(),
        vocab_size=SIZE,
        token_text=str,
    )
    for _ in range(3):
        sampler.sample(logits)
    np.testing.assert_array_equal(logits, before)
