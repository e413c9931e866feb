"""The numpy sampler of one row, against what each sampler is written to do."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay import SamplingParams
from enginebay.engine.sampler import truncation
from enginebay.engine.sampler.dry import Dry
from enginebay.engine.sampler.row_sampler import RowSampler
from enginebay_hf.sampler_state import SamplerState
from enginebay_hf.sampling import sample as hf_sample

SIZE = 40


def row(seed: int, size: int = SIZE, spread: float = 3.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def sampler(prompt: Sequence[int] = (), size: int = SIZE, **params: Any) -> RowSampler:
    return RowSampler(
        SamplingParams(**{"seed": 1, **params}),
        prompt,
        0,
        end_token_ids=(),
        vocab_size=size,
        token_text=lambda token_id: chr(97 + token_id % 26),
    )


def drawn(logits: Any, count: int = 4000, **params: Any) -> Counter[int]:
    each = sampler(size=len(logits), **params)
    return Counter(each.sample(logits) for _ in range(count))


def logprobs(logits: Any) -> Any:
    ordered = np.sort(logits.astype(np.float64))[::-1]
    shifted = ordered - ordered[0]
    return shifted - np.log(np.exp(shifted).sum())


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.integers(0, 5),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 0.5),
        "repetition_penalty": st.sampled_from([1.0, 1.4]),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "frequency_penalty": st.sampled_from([0.0, -0.5]),
        "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), st.floats(-5, 5), max_size=3),
    },
)


@given(params=PARAMS, seed=st.integers(0, 50))
def test_what_hf_has_too_is_drawn_the_same(params: dict[str, Any], seed: int) -> None:
    prompt = (1, 2, 3)
    ours = sampler(prompt, **params)
    theirs = SamplerState(SamplingParams(**{"seed": 1, **params}), prompt)
    for step in range(4):
        logits = row(seed * 10 + step)
        token_id = ours.sample(logits)
        assert token_id == hf_sample(torch.from_numpy(logits)[None], [theirs], [None]).item()
        ours.accept(token_id)
        theirs.append(token_id)


@given(params=PARAMS, seed=st.integers(0, 50))
def test_the_long_way_draws_the_same_as_the_short_one(params: dict[str, Any], seed: int) -> None:
    """Samplers that leave everything in change nothing."""
    logits = row(seed)
    short = sampler(**params).sample(logits)
    assert sampler(**params, top_a=1e-30).sample(logits) == short
    assert sampler(**params, top_n_sigma=1000).sample(logits) == short


@given(
    params=PARAMS,
    more=st.fixed_dictionaries(
        {},
        optional={
            "temperature_last": st.just(True),
            "tfs": st.floats(0.5, 0.99),
            "xtc_probability": st.sampled_from([0.5, 1.0]),
            "xtc_threshold": st.sampled_from([0.0, 0.1]),
            "skew": st.floats(-2, 2),
        },
    ),
    seed=st.integers(0, 50),
)
def test_what_is_cut_before_sorting_is_cut_behind_it(
    params: dict[str, Any], more: dict[str, Any], seed: int
) -> None:
    logits = row(seed)
    expected = sampler(**params, **more, top_n_sigma=1000).sample(logits)
    assert sampler(**params, **more).sample(logits) == expected


def test_a_rewound_sampler_is_one_that_never_went_there() -> None:
    params = {"temperature": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.3}
    params |= {"dry_multiplier": 1.0, "penalty_last_n": 3}
    there, never = sampler((1, 2), **params), sampler((1, 2), **params)
    for token_id in (5, 6, 7, 8):
        there.accept(token_id)
    there.restart((5,))
    never.accept(5)
    logits = row(3)
    np.testing.assert_array_equal(there._changes.apply(logits), never._changes.apply(logits))
    assert there.sample(logits) == never.sample(logits)


# Truncation.


@given(seed=st.integers(0, 200), mass=st.floats(0.01, 0.999))
def test_top_p_keeps_the_fewest_that_have_the_mass(seed: int, mass: float) -> None:
    values = logprobs(row(seed))
    kept = truncation.top_p(values, mass)
    shares = np.exp(values)
    count = int(kept.sum())
    assert kept[:count].all()
    assert shares[:count].sum() >= mass - 1e-9
    assert shares[: count - 1].sum() < mass


@given(seed=st.integers(0, 200), mass=st.floats(0.01, 0.99))
def test_typical_keeps_those_nearest_to_the_expected_surprise(seed: int, mass: float) -> None:
    values = logprobs(row(seed))
    kept = truncation.typical(values, mass)
    shares = np.exp(values)
    away = np.abs(-values + np.sum(shares * values))
    assert shares[kept].sum() >= mass - 1e-9
    assert shares[kept].sum() - shares[kept][away[kept].argmax()] < mass
    assert kept.all() or away[kept].max() <= away[~kept].min()


@given(seed=st.integers(0, 200), factor=st.floats(0.001, 1))
def test_top_a(seed: int, factor: float) -> None:
    shares = np.exp(logprobs(row(seed)))
    kept = truncation.top_a(np.log(shares), factor)
    np.testing.assert_array_equal(kept[1:], (shares >= factor * shares[0] ** 2)[1:])
    assert kept[0]


def test_tail_free() -> None:
    shares = np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.02])
    # Second derivatives 0, .15, .03, .01 of 0.19; the sums are 0, .79, .95, 1.
    for mass, count in ((0.5, 2), (0.8, 3), (0.96, 4)):
        assert truncation.tail_free(np.log(shares), mass).sum() == count
    assert truncation.tail_free(np.log([0.6, 0.4]), 0.1).all()


def test_xtc_leaves_out_all_but_the_last_likely_one() -> None:
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    for threshold, expected in (
        (0.15, [2, 3]),
        (0.35, [0, 1, 2, 3]),
        (0.0, [3]),
        (0.5, [0, 1, 2, 3]),
    ):
        kept = truncation.exclude_top(np.log(shares), threshold)
        assert np.flatnonzero(kept).tolist() == expected
    logits = np.log(shares[[2, 0, 3, 1]]).astype(np.float32)  # in no order
    counts = drawn(logits, xtc_probability=0.5, xtc_threshold=0.15)
    # Half of the time everything; else the third and the fourth, 2 to 1.
    wanted = {1: 0.2, 3: 0.15, 0: 0.1 + 1 / 3, 2: 0.05 + 1 / 6}
    for token_id, share in wanted.items():
        assert counts[token_id] / 4000 == pytest.approx(share, abs=0.03)


def test_top_n_sigma() -> None:
    values = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    sigma = values.std()
    assert truncation.top_n_sigma(values, 0.1).tolist() == [True, False, False, False]
    assert truncation.top_n_sigma(values, 1.01 * np.log(2) / sigma).sum() == 2


# Temperature.


def shares_of(logits: Any, **params: Any) -> Any:
    counts = drawn(logits, **params)
    return np.array([counts[i] for i in range(len(logits))]) / 4000


def softmax(logits: Any) -> Any:
    weights = np.exp(logits - np.max(logits))
    return weights / weights.sum()


def test_temperatures() -> None:
    logits = np.array([1.0, 0.0, 2.0, -1.0], np.float32)
    near = {"abs": 0.03}
    assert shares_of(logits, temperature=2.0, temperature_last=True) == pytest.approx(
        softmax(logits / 2), **near
    )
    smooth = shares_of(logits, smoothing_factor=0.5)
    assert smooth == pytest.approx(softmax(-0.5 * (2 - logits) ** 2), **near)
    both = shares_of(logits, smoothing_factor=0.5, temperature=3.0)
    assert both == pytest.approx(softmax(-0.5 * (2 - logits) ** 2 / 3), **near)
    plain = softmax(logits)
    entropy = -(plain * np.log(plain)).sum() / np.log(4)
    dynamic = shares_of(logits, temperature=1.5, dynatemp_range=1.0, dynatemp_exponent=2.0)
    assert dynamic == pytest.approx(softmax(logits / (0.5 + 2 * entropy**2)), **near)


@pytest.mark.parametrize("skew", [-1.0, 1.0])
def test_skew_moves_the_draw(skew: float) -> None:
    logits = np.log(np.array([0.25, 0.5, 0.25], np.float32))
    found = shares_of(logits, skew=skew)
    # The likeliest is drawn where the number to that power is below its share.
    assert found[1] == pytest.approx(0.5 ** np.exp(skew), abs=0.03)


# Mirostat.


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("target", [3.0, 5.0])
def test_mirostat_holds_the_surprise(version: Any, target: float) -> None:
    ranks = np.arange(1, 501)
    logits = (-1.1 * np.log(ranks)).astype(np.float32)
    bits = -np.log2(softmax(logits))
    each = sampler(size=500, mirostat=version, mirostat_tau=target)
    tokens = [each.sample(logits) for _ in range(1500)][100:]
    if version == 1:
        assert np.mean(bits[tokens]) == pytest.approx(target, abs=0.4)
    else:  # by what is left to choose from
        assert np.mean(bits[tokens]) < bits.mean()
        assert abs(each._mirostat._most) < 50  # type: ignore[union-attr]
    assert sampler(mirostat=version, mirostat_tau=0.0).sample(row(1)) == row(1).argmax()


# DRY.


def naive_dry(params: SamplingParams, tokens: list[int], text: Callable[[int], str]) -> Any:
    last_n = params.dry_penalty_last_n
    window = tokens[max(0, len(tokens) - last_n) :] if last_n >= 0 else tokens
    broken = [any(b == text(t) for b in params.dry_sequence_breakers) for t in window]
    longest: dict[int, int] = {}
    for end in range(len(window) - 1):
        length = 0
        while (
            length <= end
            and not broken[len(window) - 1 - length]
            and window[end - length] == window[len(window) - 1 - length]
        ):
            length += 1
        if length >= params.dry_allowed_length:
            following = window[end + 1]
            longest[following] = max(longest.get(following, 0), length)
    penalties = np.zeros(26, np.float32)
    for token, length in longest.items():
        beyond = length - params.dry_allowed_length
        penalties[token] = params.dry_multiplier * params.dry_base**beyond
    return penalties


@given(
    tokens=st.lists(st.integers(0, 3), max_size=30),
    allowed=st.integers(0, 4),
    last_n=st.sampled_from([-1, 0, 5, 12]),
    breakers=st.sampled_from([(), ("b",), ("a", "d")]),
)
def test_dry(tokens: list[int], allowed: int, last_n: int, breakers: tuple[str, ...]) -> None:
    params = SamplingParams(
        dry_multiplier=0.5,
        dry_base=1.5,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=breakers,
    )

    def text(token_id: int) -> str:
        return chr(97 + token_id)

    half = len(tokens) // 2
    dry = Dry(params, tokens[:half], text)
    for token_id in tokens[half:]:
        dry.accept(token_id)
    found = -dry.apply(np.zeros(26, np.float32))
    np.testing.assert_allclose(found, naive_dry(params, tokens, text), rtol=1e-5)


def test_a_breaker_may_be_several_tokens() -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=("ab",))
    tokens = [0, 1, 5, 0, 1]  # "ab", f, "ab"
    assert not Dry(params, tokens, lambda t: chr(97 + t)).apply(np.zeros(26, np.float32)).any()


# Rows that are no distribution.


def test_rows_without_a_choice() -> None:
    with pytest.raises(FloatingPointError, match="not numbers"):
        sampler().sample(np.full(SIZE, np.nan, np.float32))
    assert sampler().sample(np.full(SIZE, -np.inf, np.float32)) == 0
    certain = row(1)
    certain[7] = np.inf
    assert sampler().sample(certain) == 7
    with pytest.raises(FloatingPointError, match="forbidden"):
        sampler(allowed_token_ids=(3,)).sample(row(1), banned=[3])


EXTREMES = st.fixed_dictionaries(
    {"temperature": st.sampled_from([1e-6, 0.01, 1.0, 100.0])},
    optional={
        "dynatemp_range": st.sampled_from([0.5, 100.0]),
        "dynatemp_exponent": st.sampled_from([0.0, 1.0, 100.0]),
        "smoothing_factor": st.sampled_from([0.01, 100.0]),
        "temperature_last": st.booleans(),
        "typical_p": st.sampled_from([0.0, 0.5]),
        "top_p": st.sampled_from([0.0, 0.5]),
        "top_a": st.sampled_from([0.2, 1.0]),
        "min_p": st.sampled_from([0.1, 1.0]),
        "tfs": st.sampled_from([0.0, 0.5]),
        "xtc_probability": st.just(1.0),
        "xtc_threshold": st.sampled_from([0.0, 0.1]),
        "mirostat": st.sampled_from([1, 2]),
        "skew": st.sampled_from([-20.0, 20.0]),
        "dry_multiplier": st.just(100.0),
        "dry_base": st.just(100.0),
    },
)


@given(params=EXTREMES, spread=st.sampled_from([0.0, 1.0, 1e4, 1e30]))
def test_whatever_is_asked_for_there_is_a_token(params: dict[str, Any], spread: float) -> None:
    each = sampler((1, 2) * 50, **params)
    logits = row(4, spread=spread)
    logits[::3] = -np.inf
    for _ in range(3):
        token_id = each.sample(logits)
        assert logits[token_id] > -np.inf
        each.accept(token_id)
