"""What is drawn by default, and from odd logits."""

import math
from typing import Any

import numpy as np
import pytest

from enginebay import SamplingParams
from enginebay.engine.sampler.draw import draw
from enginebay.engine.sampler.logits import Row
from tests.sampler.conftest import GREEDY, SAMPLED, SIZE, Maker, softmax


def expected(row: Row, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """Probabilities by the textbook: scale, then cut, renormalizing each time."""
    p = softmax(row / np.float32(temperature))
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= max(top_p, 1e-9)]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "other", [{}, {"top_a": 1e-30}, {"xtc_probability": 1e-9, "xtc_threshold": 0.5}]
)
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.3, 0, 1.0, 0.0),
        (1.0, 8, 1.0, 0.0),
        (0.7, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.2, 20, 0.9, 0.05),
    ],
)
def test_distribution(
    make: Maker, other: dict[str, Any], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = make.random_row(spread=4)
    params: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    probabilities = expected(row, temperature, top_k, top_p, min_p)
    sampler = make(**params, **other, seed=3)
    draws = 6000
    counts = np.bincount([sampler.sample(row) for _ in range(draws)], minlength=len(row))
    assert counts[probabilities == 0].sum() == 0
    distance = np.abs(counts / draws - probabilities).sum() / 2
    # Of as many draws from the true distribution, the mean distance is at most this.
    bound = np.sqrt(probabilities * (1 - probabilities) / draws).sum() / 2
    assert distance < 1.3 * bound


@pytest.mark.parametrize("top_p", [0.0, 1e-6, 0.3, 0.9, 0.99999])
@pytest.mark.parametrize("spread", [0.0, 0.05, 3.0])
def test_top_p_of_flat_and_sharp_logits(make: Maker, top_p: float, spread: float) -> None:
    row = make.random_row(spread=spread)
    probabilities = expected(row, 1.0, 0, top_p, 0.0)
    # Where top_p falls between two tokens up to rounding, one more is as right; equals all count.
    lowest = probabilities[probabilities > 0].min() * 0.9999 if spread else 0
    drawn = make.draws(row, 50, top_p=top_p)
    probability = softmax(row)
    assert all(probability[token] >= lowest * probability.max() for token in drawn)
    if top_p < 1e-3 and spread:
        assert list(drawn) == [int(row.argmax())]


def test_seed_and_index_make_the_tokens(make: Maker) -> None:
    row = make.random_row()
    for other in ({}, {"typical_p": 0.9}, {"mirostat": 2}, {"adaptive_target": 0.3}):

        def tokens(**params: Any) -> tuple[int, ...]:
            sampler = make(**params, **other)  # noqa: B023
            return tuple(sampler.sample(row) for _ in range(8))

        assert tokens(seed=1) == tokens(seed=1)
        assert len({tokens(seed=s, index=i) for s in (0, 1, 2**64 - 1) for i in range(4)}) == 12
        assert tokens() != tokens()


def test_what_is_plain_greedy(make: Maker) -> None:
    assert make(**GREEDY).is_plain_greedy
    assert make(**GREEDY, min_tokens=3).is_plain_greedy
    assert not make(**GREEDY, min_tokens=3, eos=[1]).is_plain_greedy
    assert not make(**GREEDY, logit_bias={1: 1.0}).is_plain_greedy
    assert not make(**GREEDY, repetition_penalty=1.1).is_plain_greedy
    assert not make(**GREEDY, dry_multiplier=0.8).is_plain_greedy
    assert make(**GREEDY, mirostat=2, typical_p=0.1, xtc_probability=1.0).is_plain_greedy


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
@pytest.mark.parametrize("other", [{}, {"typical_p": 0.99}, {"dry_multiplier": 1.0}])
def test_tiny_temperatures_are_greedy(
    make: Maker, temperature: float, other: dict[str, Any]
) -> None:
    row = make.row(1e4, -1e4, 1e4 + 1, 3e38)
    assert make(**other, seed=1, temperature=temperature).sample(row) == 3


EVERYTHING: list[dict[str, Any]] = [
    {},
    {"typical_p": 0.0},
    {"top_n_sigma": 1.0, "typical_p": 0.5, "xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"mirostat": 1, "mirostat_tau": 0.0},
    {"mirostat": 2, "mirostat_tau": 100.0},
    {"dynatemp_range": 9.0, "dynatemp_exponent": 0.0, "temperature": 1e-9},
    {"adaptive_target": 1.0, "top_p": 0.0},
    {"adaptive_target": 0.5, "adaptive_decay": 1.0, "skew": -3.0, "tfs": 0.5, "top_a": 0.3},
    {"dry_multiplier": 9.0, "dry_base": 100.0, "dry_allowed_length": 0},
    {"temperature_last": True, "temperature": 50.0, "top_k": 2**40, "min_p": 1.0},
    {"repetition_penalty": 10.0, "penalty_last_n": 2**70, "dry_penalty_last_n": 2**40},
]


def test_a_token_without_weight_is_never_drawn() -> None:
    """Not at the ends of the scale, nor between the blocks that weights are summed in."""
    logits = np.full(5000, -np.inf, np.float32)
    logits[[1024, 4095]] = 0.0
    numbers = (0.0, 0.4999, 0.5, 1 - 2**-53)
    drawn = [draw(logits, SamplingParams(), number) for number in numbers]
    assert drawn == [1024, 1024, 4095, 4095]


@pytest.mark.parametrize("params", EVERYTHING, ids=str)
def test_odd_logits_give_a_token_of_the_vocabulary(make: Maker, params: dict[str, Any]) -> None:
    one = make.row(rest=-math.inf)
    one[17] = 3.0
    two = one.copy()
    two[18] = -200.0
    infinite = make.random_row()
    infinite[5] = math.inf
    sampler = make(**{**SAMPLED, **params}, prompt=[17, 18] * 40)
    assert sampler.sample(one) == 17
    assert sampler.sample(two) in (17, 18)
    assert sampler.sample(infinite) == 5
    for row in (make.row(rest=-math.inf), make.row(rest=0.0), make.row(3e38, rest=-3e38)):
        assert 0 <= sampler.sample(row) < SIZE
    with pytest.raises(FloatingPointError):
        sampler.sample(make.row(math.nan))
