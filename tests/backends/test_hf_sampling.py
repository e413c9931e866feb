"""Sampling against reference distributions and the logits processors of transformers."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from enginebay import RowSampler, SamplingParams
from enginebay_hf import sampling, truncation
from enginebay_hf.penalties import change_logits
from enginebay_hf.sampler_state import SamplerState, is_sampled_together
from enginebay_hf.sampling import logprobs
from tests.effort import examples

GREEDY: dict[str, Any] = {"temperature": 0.0}


def sample(logits: torch.Tensor, rows: Sequence[SamplerState]) -> torch.Tensor:
    return sampling.sample(logits, rows, [None] * len(rows))


def state(
    *completion: int,
    prompt: Sequence[int] = (),
    index: int = 0,
    ends: Sequence[int] = (),
    **params: Any,
) -> SamplerState:
    row = SamplerState(SamplingParams(**params), tuple(prompt), index, frozenset(ends))
    for token in completion:
        row.append(token)
    return row


def logits_of(vocabulary: int, rows: int = 1, seed: int = 0, spread: float = 2.5) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


# Distributions.


def deviation(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Chi-square over bins expected at least five times, in standard deviations off its mean."""
    common = expected >= 5
    chi_square = ((counts - expected)[common] ** 2 / expected[common]).sum().item()
    freedom = max(int(common.sum()) - 1, 1)
    return (chi_square - freedom) / math.sqrt(2 * freedom)


DISTRIBUTIONS: dict[str, tuple[dict[str, Any], list[LogitsProcessor]]] = {
    "plain": ({}, []),
    "cold": ({"temperature": 0.4}, [TemperatureLogitsWarper(0.4)]),
    "hot": ({"temperature": 2.5}, [TemperatureLogitsWarper(2.5)]),
    "top_k": ({"top_k": 6}, [TopKLogitsWarper(6)]),
    "top_p": ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    "all": (
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        [
            TemperatureLogitsWarper(1.5),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.05),
        ],
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("vocabulary", [40, 700])
def test_distribution(name: str, vocabulary: int) -> None:
    params, processors = DISTRIBUTIONS[name]
    draws = 6000
    logits = logits_of(vocabulary)
    reference = logits.clone()
    for processor in processors:
        reference = processor(torch.empty(1, 0), reference)
    probabilities = reference.softmax(-1)[0]
    rows = [state(**params, seed=seed) for seed in range(draws)]
    counts = sample(logits.expand(draws, -1), rows).bincount(minlength=vocabulary)
    assert counts[probabilities == 0].sum() == 0
    assert deviation(counts, probabilities * draws) < 3.5


def test_one_row_draws_from_its_distribution_over_time() -> None:
    logits, row = logits_of(12), state(seed=3)
    counts = torch.zeros(12)
    for _ in range(3000):
        counts[sample(logits, [row]).item()] += 1
    assert deviation(counts, logits.softmax(-1)[0] * 3000) < 3.5


@examples(150)
@given(
    vocabulary=st.sampled_from([2, 5, 64, 300, 5000]),
    seed=st.integers(0, 50),
    spread=st.sampled_from([0.02, 0.5, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 256, 257, 4097, 10**6]),
    top_p=st.sampled_from([0.0, 1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-3, 0.2, 1.0]),
)
def test_truncation_keeps_what_transformers_keeps(
    vocabulary: int, seed: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = logits_of(vocabulary, seed=seed, spread=spread)
    logits -= logits.amax(-1, keepdim=True)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    kept = logits[0] >= truncation.lowest_drawn(logits, [params])[0]
    reference = logits.clone()
    if top_k:
        reference = TopKLogitsWarper(top_k)(torch.empty(1, 0), reference)
    if top_p < 1:
        reference = TopPLogitsWarper(top_p)(torch.empty(1, 0), reference)
    if min_p:
        reference = MinPLogitsWarper(min_p)(torch.empty(1, 0), reference)
    # Where top_p falls between two tokens up to rounding, one more or less is as right.
    assert (kept != reference[0].isfinite()).sum() <= 1
    assert kept[logits.argmax()]


def test_truncation_sorts_as_little_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    topk = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda x, k: widths.append(k) or topk(x, k))
    sharp, flat = logits_of(20_000), torch.zeros(1, 20_000)
    truncation.lowest_drawn(sharp, [SamplingParams(top_k=50, top_p=0.9)])
    assert widths == [256]
    widths.clear()
    lowest = truncation.lowest_drawn(torch.cat((sharp, flat)), [SamplingParams(top_p=0.3)] * 2)
    assert widths == [256, 4096, 20_000]
    assert lowest[1] == 0  # all are equal, so all are kept
    widths.clear()
    truncation.lowest_drawn(sharp, [SamplingParams(min_p=0.1)])
    assert widths == []


# One row does not depend on the others.

PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-6, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 3, 300]),
        "top_p": st.sampled_from([0.5, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, -0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.4]),
        "logit_bias": st.sampled_from([{}, {3: 4.0, 7: -100.0}]),
        "min_tokens": st.sampled_from([0, 9]),
        "seed": st.integers(0, 99),
    }
)


@examples(100)
@given(settings_of_rows=st.lists(PARAMS, min_size=2, max_size=5))
def test_a_row_draws_the_same_alone_and_in_company(
    settings_of_rows: list[dict[str, Any]],
) -> None:
    def rows() -> list[SamplerState]:
        return [
            state(5, 6, 5, prompt=(1, 2, 5), ends=(0, 8), **params) for params in settings_of_rows
        ]

    # Logits as a bfloat16 model makes them: full of ties.
    logits = logits_of(500, rows=len(settings_of_rows)).bfloat16().float()
    before = logits.clone()
    together = sample(logits, rows()).tolist()
    alone = [sample(logits[i : i + 1], [row]).item() for i, row in enumerate(rows())]
    assert together == alone
    assert torch.equal(logits, before), "sampling changed the model's logits"


def test_seed_and_index_make_the_numbers() -> None:
    def numbers(**params: Any) -> tuple[float, ...]:
        row = state(**params)
        return tuple(row.uniform() for _ in range(4))

    assert numbers(seed=1) == numbers(seed=1)
    assert len({numbers(seed=s, index=i) for s in (-1, 0, 1, 2) for i in range(4)}) == 16
    assert numbers() != numbers()


# Rows with a sampler of their own.


def apart(**params: Any) -> SamplerState:
    sampling = SamplingParams(**params)
    sampler = RowSampler(
        sampling, (1, 2), 0, end_token_ids=(), vocab_size=500, token_text=lambda i: f"{i} "
    )
    return SamplerState(sampling, (1, 2), row_sampler=sampler)


APART: list[dict[str, Any]] = [
    {"temperature_last": True, "temperature": 2.0, "min_p": 0.1},
    {"dry_multiplier": 2.0, "temperature": 0.0},
    {"mirostat": 2, "mirostat_tau": 2.0},
    {"adaptive_target": 0.2},
    {"xtc_probability": 1.0},
    {"repetition_penalty": 1.5, "penalty_last_n": 1},
]


@pytest.mark.parametrize("params", APART, ids=str)
def test_what_the_device_does_not_do_is_drawn_as_by_itself(params: dict[str, Any]) -> None:
    assert not is_sampled_together(SamplingParams(**params))
    row = apart(**params, seed=3)
    alone = RowSampler(
        SamplingParams(**params, seed=3), (1, 2), 0,
        end_token_ids=(), vocab_size=500, token_text=lambda i: f"{i} ",
    )  # fmt: skip
    beside, beside_alone = state(seed=8, top_p=0.9), state(seed=8, top_p=0.9)
    for step in range(6):
        logits = logits_of(512, rows=2, seed=step)  # wider than the vocabulary
        ours, other = sample(logits, [row, beside]).tolist()
        assert other == sample(logits[1:], [beside_alone]).item()
        expected = alone.sample(logits[0, :500].numpy())
        assert ours == expected
        row.append(ours)
        alone.accept(expected)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0, "mirostat": 2, "xtc_probability": 1.0},
        {"temperature_last": True},
        {"penalty_last_n": 3},
        {"repetition_penalty": 1.2, "top_k": 4, "logit_bias": {1: 2.0}},
    ],
    ids=str,
)
def test_what_changes_nothing_stays_on_the_device(params: dict[str, Any]) -> None:
    assert is_sampled_together(SamplingParams(**params))


# Corners.


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_draw_never_lands_on_a_token_without_weight(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SamplerState, "uniform", lambda row: uniform)
    logits = torch.full((1, 9), -math.inf)
    logits[0, [3, 5]] = 1.0
    assert sample(logits, [state()]).item() == (3 if uniform < 0.5 else 5)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.tensor([[1e4, -1e4, 1e4 + 1, 3e38]])
    assert sample(logits, [state(temperature=temperature, seed=1)]).item() == 3


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]])
    assert sample(logits, [state(**GREEDY)]).item() == 1


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_rows_without_any_allowed_token_do_not_disturb_others(value: float) -> None:
    logits = torch.cat((torch.full((1, 8), value), torch.tensor([[0.0] * 7 + [99.0]])))
    rows = [state(seed=1, top_p=0.5), state(seed=1, top_p=0.5)]
    first, second = sample(logits, rows).tolist()
    assert 0 <= first < 8
    assert second == 7


def test_infinite_logits_win() -> None:
    logits = torch.tensor([[0.0, math.inf, 5.0, math.nan]])
    assert sample(logits, [state(seed=4)]).item() == 1


# Penalties, bias, forbidden ends.


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = logits_of(50, rows=3)
    rows = [
        state(4, 9, 4, prompt=(1, 1, 4), repetition_penalty=1.7),
        state(4),
        state(prompt=(30,), repetition_penalty=0.6),
    ]
    expected = logits.clone()
    first = RepetitionPenaltyLogitsProcessor(1.7)
    third = RepetitionPenaltyLogitsProcessor(0.6)
    expected[:1] = first(torch.tensor([[1, 1, 4, 4, 9, 4]]), expected[:1])
    expected[2:] = third(torch.tensor([[30]]), expected[2:])
    assert torch.equal(change_logits(logits, rows), expected)


def test_presence_and_frequency_penalty_count_the_completion_only() -> None:
    logits = logits_of(20, rows=2)
    rows = [
        state(4, 9, 4, prompt=(1, 2, 3), presence_penalty=0.5, frequency_penalty=0.25),
        state(4),
    ]
    expected = logits.clone()
    expected[0, 4] -= 0.5 + 2 * 0.25
    expected[0, 9] -= 0.5 + 0.25
    torch.testing.assert_close(change_logits(logits, rows), expected)


def test_repetition_comes_before_the_other_penalties_and_the_bias() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    row = state(0, 1, repetition_penalty=2.0, presence_penalty=0.5, logit_bias={0: 3.0, 2: -1.0})
    expected = torch.tensor([[2.0 / 2 - 0.5 + 3, -2.0 * 2 - 0.5, 0.0]])
    torch.testing.assert_close(change_logits(logits, [row]), expected)


def test_logit_bias_bans_and_forces() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0]]).expand(2, -1)
    rows = [state(**GREEDY, logit_bias={1: -100.0}), state(seed=1, logit_bias={0: 100.0})]
    assert sample(logits, rows).tolist() == [2, 0]


def test_min_tokens_forbids_the_ends() -> None:
    logits = torch.tensor([[9.0, 8.0, 1.0]])
    early = state(2, **GREEDY, min_tokens=2, ends=(0, 1))
    assert sample(logits, [early]).item() == 2
    early.append(2)
    assert sample(logits, [early]).item() == 0


def test_plain_rows_cost_no_copy() -> None:
    logits = logits_of(30, rows=2)
    assert change_logits(logits, [state(), state(5, **GREEDY)]) is logits


# Logprobs.


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = logits_of(30, rows=3)
    rows = [state(logprobs=2, logit_bias={5: 100.0}), state(), state(logprobs=0, temperature=0.1)]
    tokens = sample(logits, rows)
    first, second, third = logprobs(logits, tokens, rows, str)
    assert first is not None
    assert second is None
    assert third is not None
    expected = logits.log_softmax(-1)
    assert first.token_id == 5
    assert first.token == "5"
    assert first.logprob == pytest.approx(expected[0, 5].item(), abs=1e-6)
    values, ids = expected[0].topk(2)
    assert [top.token_id for top in first.top] == ids.tolist()
    assert [top.logprob for top in first.top] == pytest.approx(values.tolist())
    assert third.top == ()


def test_more_top_logprobs_than_tokens() -> None:
    logits = logits_of(3)
    row = state(**GREEDY, logprobs=20)
    (entry,) = logprobs(logits, sample(logits, [row]), [row], str)
    assert entry is not None
    assert Counter(top.token_id for top in entry.top) == Counter({0: 1, 1: 1, 2: 1})
