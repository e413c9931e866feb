"""Penalties, bias and forbidden ends against formulas."""

from typing import Any

import numpy as np
import pytest

from enginebay import RowSampler
from enginebay.engine.sampler.logits import Row
from tests.sampler.conftest import GREEDY, SAMPLED, Maker


def changed(make: Maker, row: Row, sampler: RowSampler) -> Row:
    before = row.copy()
    after = sampler._changes.apply(row)
    assert (row == before).all()
    return after


def test_repetition_penalty_counts_prompt_and_completion(make: Maker) -> None:
    row = make.random_row()
    result = row.copy()
    for token in (1, 2, 3):
        result[token] = result[token] / 1.7 if result[token] > 0 else result[token] * 1.7
    sampler = make(3, 2, 3, prompt=[1, 1, 2], repetition_penalty=1.7)
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


def test_presence_and_frequency_penalty_count_the_completion(make: Maker) -> None:
    row = make.random_row()
    result = row.copy()
    result[3] -= 0.5 + 2 * 0.25
    result[2] -= 0.5 + 0.25
    sampler = make(3, 2, 3, prompt=[1, 1, 2], presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


@pytest.mark.parametrize(
    ("last_n", "repetition", "counts"),
    [(0, [], {}), (1, [9], {9: 1}), (3, [9, 8], {9: 2, 8: 1}), (5, [9, 8, 2], {9: 2, 8: 1})],
)
def test_penalties_look_back_so_far(
    make: Maker, last_n: int, repetition: list[int], counts: dict[int, int]
) -> None:
    row = make.random_row()
    result = row.copy()
    for token in repetition:
        result[token] = result[token] / 2 if result[token] > 0 else result[token] * 2
    for token, count in counts.items():
        result[token] -= count
    sampler = make(
        9, 8, 9, prompt=[1, 2, 2], repetition_penalty=2.0, frequency_penalty=1.0,
        penalty_last_n=last_n,
    )  # fmt: skip
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


def test_repetition_comes_before_the_other_penalties_and_the_bias(make: Maker) -> None:
    row = make.row(2.0, -2.0, 1.0)
    sampler = make(0, 1, repetition_penalty=2.0, presence_penalty=0.5, logit_bias={0: 3.0, 2: -1.0})
    result = make.row(2.0 / 2 - 0.5 + 3, -2.0 * 2 - 0.5, 0.0)
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


def test_logit_bias_bans_and_forces(make: Maker) -> None:
    row = make.row(0.0, 5.0, 1.0)
    assert make(**GREEDY, logit_bias={1: -100.0}).sample(row) == 2
    assert make(**SAMPLED, logit_bias={0: 100.0}).sample(row) == 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, {**SAMPLED, "typical_p": 0.9}])
def test_min_tokens_forbids_the_ends(make: Maker, params: dict[str, Any]) -> None:
    row = make.row(30.0, 20.0, 10.0)
    sampler = make(**params, min_tokens=2, eos=[0], stop_token_ids=(1,))
    assert [sampler.sample(row) for _ in range(3)] == [2, 2, 0]
    assert make(**params, min_tokens=2, eos=[0], ignore_eos=True).sample(row) == 0
