"""Each sampler on logits made by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.sampler.conftest import GREEDY, SAMPLED, Maker, softmax


def test_top_k_and_min_p_of_one_are_greedy(make: Maker) -> None:
    row = make.random_row()
    best = int(row.argmax())
    assert list(make.draws(row, 20, top_k=1)) == [best]
    assert list(make.draws(row, 20, min_p=1.0)) == [best]


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_top_n_sigma_keeps_the_same_at_every_temperature(make: Maker, temperature: float) -> None:
    row = make.random_row()
    kept = np.flatnonzero(row >= row.max() - 0.4 * row.std())
    assert 2 <= len(kept) <= 10
    drawn = make.draws(row, temperature=temperature, top_n_sigma=0.4)
    assert set(drawn) <= set(kept.tolist())
    assert len(drawn) >= 2


def test_typical_leaves_out_what_is_too_likely_and_too_unlikely(make: Maker) -> None:
    # Entropy is 1.8 nats, at which surprise of the middle ones is nearest.
    p = np.array([0.4, 0.12, 0.12, 0.12, 0.12, 0.12])
    drawn = make.draws(make.row(*np.log(p)), typical_p=0.5)
    assert set(drawn) <= {1, 2, 3, 4, 5}
    assert len(drawn) == 5


def test_typical_is_not_misled_by_probabilities_that_round_to_zero(make: Maker) -> None:
    row = make.row(1.0, 1.0, rest=-500.0)
    assert set(make.draws(row, typical_p=0.9)) == {0, 1}


def test_xtc_leaves_the_least_likely_of_the_likely(make: Maker) -> None:
    row = make.row(*np.log([0.5, 0.3, 0.15, 0.05]))
    assert set(make.draws(row, xtc_probability=1.0)) == {2, 3}
    drawn = make.draws(row, 1000, xtc_probability=0.5)
    assert drawn[0] == pytest.approx(250, abs=60)
    assert 0 in make.draws(row, xtc_probability=1.0, xtc_threshold=0.4)


def test_dynamic_temperature_follows_the_entropy(make: Maker) -> None:
    sharp = make.row(4.0, 0.0)
    params: dict[str, Any] = {"temperature": 2.0, "dynatemp_range": 2.0, "dynatemp_exponent": 1.0}
    assert len(make.draws(sharp, temperature=2.0)) == 2
    assert make.draws(sharp, **params)[0] == 300  # nearly no entropy: nearly no temperature
    flat = make.row(rest=0.0)
    assert len(make.draws(flat, **params)) > 200


def test_temperature_last(make: Maker) -> None:
    row = make.row(*np.log([0.6, 0.3, 0.1]))
    assert set(make.draws(row, temperature=9.0, top_p=0.8, temperature_last=True)) == {0, 1}
    assert 2 in make.draws(row, temperature=9.0, top_p=0.8)
    drawn = make.draws(row, 1000, temperature=9.0, top_p=0.8, temperature_last=True)
    assert drawn[1] / drawn[0] == pytest.approx(0.5 ** (1 / 9), rel=0.15)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise(make: Maker, version: int) -> None:
    row = make.row(*(-1.2 * np.log(np.arange(1, 1001))))
    surprise = -np.log2(softmax(row))

    def mean(tau: float) -> float:
        sampler = make(**SAMPLED, mirostat=version, mirostat_tau=tau, mirostat_eta=0.3)
        return float(np.mean([surprise[sampler.sample(row)] for _ in range(400)]))

    low, high = mean(2.0), mean(4.5)
    assert low + 0.8 < high
    if version == 2:
        assert list(make.draws(row, 30, temperature=3.0, mirostat=2, mirostat_tau=0.0)) == [0]


def test_adaptive_p_prefers_its_target(make: Maker) -> None:
    row = make.row(*np.log([0.7, 0.2, 0.1]))

    def often(target: float) -> Counter[int]:
        return make.draws(row, adaptive_target=target, min_p=0.01)

    assert often(0.2)[1] > often(0.7)[1]
    assert often(0.9)[0] > 250


# DRY.


def test_dry_penalizes_the_token_that_goes_on_with_a_repetition(make: Maker) -> None:
    a, b, c, d = 300, 301, 302, 303
    row = make.row()
    row[c], row[d] = 5.0, 3.0
    repeated: dict[str, Any] = {"prompt": [a, b, c, d, a], **GREEDY}
    params: dict[str, Any] = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_sequence_breakers": ()}
    # "a b" has been said before and c came next: 1 * 2 ** (2 - allowed length).
    assert make(b, **repeated, **params).sample(row) == c  # 5 - 1
    assert make(b, **repeated, **params, dry_allowed_length=1).sample(row) in (c, d)  # 5 - 2
    assert make(b, **repeated, **{**params, "dry_base": 2.5}, dry_allowed_length=1).sample(row) == d
    strong: dict[str, Any] = {**params, "dry_multiplier": 2.5}
    assert make(b, **repeated, **strong).sample(row) == d
    assert make(b, **repeated, **strong, dry_allowed_length=3).sample(row) == c
    assert make(b, **repeated, **strong, dry_penalty_last_n=0).sample(row) == c
    assert make(b, **repeated, **strong, dry_penalty_last_n=3).sample(row) == c
    assert make(b, d, **repeated, **strong).sample(row) == c
    drawn = make(b, prompt=[a, b, c, d, a], **SAMPLED, **{**params, "dry_multiplier": 50.0})
    assert drawn.sample(row) == d


def test_dry_does_not_reach_over_a_sequence_breaker(make: Maker) -> None:
    a, c, d, newline = 300, 302, 303, 10
    row = make.row()
    row[c], row[d] = 5.0, 3.0
    params: dict[str, Any] = {"prompt": [a, newline, c, d, a], "dry_multiplier": 50.0, **GREEDY}
    assert make(newline, **params, dry_sequence_breakers=("x",)).sample(row) == d
    assert make(newline, **params).sample(row) == c
