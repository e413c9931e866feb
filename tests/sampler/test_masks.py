"""A constraint's mask holds, whatever the samplers and the params say."""

import math
from typing import Any

import numpy as np
import pytest

from tests.sampler.conftest import GREEDY, SAMPLED, SIZE, Maker, softmax
from tests.sampler.test_draw import EVERYTHING


@pytest.mark.parametrize("params", [GREEDY, *EVERYTHING], ids=str)
def test_only_what_the_mask_allows_is_chosen(make: Maker, params: dict[str, Any]) -> None:
    random = np.random.default_rng(4)
    sampler = make(**{**SAMPLED, **params}, prompt=[17, 18] * 40)
    for step in range(40):
        allowed = random.choice(SIZE, size=1 + step % 7 * 50, replace=False)
        row = make.random_row(seed=step)
        before = row.copy()
        assert sampler.sample(row, make.mask(*allowed)) in allowed
        assert (row == before).all()


def test_the_likeliest_that_is_allowed(make: Maker) -> None:
    row = make.row(5.0, 4.0, 3.0, 2.0)
    assert make(**GREEDY).sample(row, make.mask(2, 3, 2000)) == 2
    assert make(**GREEDY, logit_bias={3: 2.0}).sample(row, make.mask(2, 3)) == 3
    assert make(3, **GREEDY, dry_multiplier=1.0).sample(row, make.mask(3)) == 3


@pytest.mark.parametrize("other", [{}, {"xtc_probability": 1e-9}], ids=str)
def test_shares_are_those_of_the_tokens_that_are_left(make: Maker, other: dict[str, Any]) -> None:
    row = make.row(9.0, 1.0, 8.0, 2.0, 0.0)
    sampler = make(**SAMPLED, **other)
    drawn = [sampler.sample(row, make.mask(1, 3, 4)) for _ in range(3000)]
    expected = softmax(row[[1, 3, 4]])
    shares = np.bincount(drawn, minlength=5)[[1, 3, 4]] / len(drawn)
    assert np.abs(shares - expected).max() < 0.04


BANS: list[dict[str, Any]] = [
    {"logit_bias": {40: -math.inf, 41: -math.inf}},
    {"allowed_token_ids": (7, 8)},
    {"min_tokens": 5, "eos": [40], "stop_token_ids": (41,)},
]


@pytest.mark.parametrize("bans", BANS, ids=str)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, {"typical_p": 0.9}, {"mirostat": 1}], ids=str)
def test_a_mask_goes_before_bans(make: Maker, params: dict[str, Any], bans: dict[str, Any]) -> None:
    row = make.random_row()
    row[40], row[41] = -3.0, 3.0
    drawn = {
        make(**{**params, "seed": seed}, **bans).sample(row, make.mask(40, 41))
        for seed in range(20)
    }
    assert drawn <= {40, 41}
    assert 41 in drawn  # what the model says counts again


@pytest.mark.parametrize("bans", [BANS[0], BANS[2]], ids=str)
def test_bans_hold_among_what_the_mask_allows(make: Maker, bans: dict[str, Any]) -> None:
    row = make.row(rest=0.0)
    row[40] = row[41] = 30.0
    assert list(make.draws(row, 20, mask=make.mask(40, 41, 42), **bans)) == [42]


def test_a_token_that_the_model_never_says(make: Maker) -> None:
    row = make.row(1.0, rest=-math.inf)
    for params in (GREEDY, SAMPLED, {"typical_p": 0.5}):
        assert make(**params).sample(row, make.mask(900)) == 900


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, {"mirostat": 2}], ids=str)
def test_logits_that_are_no_numbers_are_still_an_error(make: Maker, params: dict[str, Any]) -> None:
    row = make.random_row()
    row[5] = math.nan
    for allowed in (5, 6):
        with pytest.raises(FloatingPointError):
            make(**params).sample(row, make.mask(allowed))
