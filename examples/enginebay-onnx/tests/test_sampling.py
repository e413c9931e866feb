"""What is chosen from given logits, without a model."""

import math
from collections import Counter

import numpy as np
import pytest
from enginebay_onnx.sampling import UNSUPPORTED, Sampler, token_logprob
from hypothesis import given
from hypothesis import strategies as st

from enginebay import SamplingParams

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, -math.inf], np.float32)
PROBABILITIES = [0.644, 0.237, 0.087, 0.032, 0.0]
DRAWS = 4000


def drawn(params: SamplingParams) -> list[float]:
    """How often each token comes, each time as the first one behind the token 1."""
    sampler = Sampler(params, 0, (1,), frozenset())
    counts = Counter(sampler.sample(LOGITS, None) for _ in range(DRAWS))
    return [counts[token] / DRAWS for token in range(len(LOGITS))]


def scaled(*weights: float) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def two_sigmas(expected: list[float]) -> object:
    return pytest.approx(expected, abs=4 * math.sqrt(0.25 / DRAWS))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, scaled(math.e**4, math.e**2, 1, math.e**-2, 0)),
        ({"temperature": 0.0}, [1, 0, 0, 0, 0]),
        ({"top_k": 2}, scaled(math.e, 1, 0, 0, 0)),
        ({"top_p": 0.6}, [1, 0, 0, 0, 0]),
        ({"top_p": 0.7}, scaled(math.e, 1, 0, 0, 0)),
        ({"top_p": 0.0}, [1, 0, 0, 0, 0]),
        ({"min_p": 0.2}, scaled(math.e, 1, 0, 0, 0)),
        ({"logit_bias": {1: 1.0, 0: -math.inf}}, scaled(0, math.e**2, 1, math.e**-1, 0)),
        ({"allowed_token_ids": (1, 3)}, scaled(0, math.e**2, 0, 1, 0)),
        ({"repetition_penalty": 2.0}, scaled(math.e**2, math.e**0.5, 1, math.e**-1, 0)),
    ],
)
def test_tokens_come_as_often_as_they_should(params: dict, expected: list[float]) -> None:
    assert drawn(SamplingParams(seed=1, **params)) == two_sigmas(expected)


def test_no_end_before_min_tokens() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=1)
    sampler = Sampler(params, 0, (), frozenset({0}))
    assert sampler.sample(LOGITS, None) == 1
    sampler.add(1)
    assert sampler.sample(LOGITS, None) == 0


def test_penalties() -> None:
    params = SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.4)
    sampler = Sampler(params, 0, (0, 0, 0), frozenset())
    chosen = []
    for _ in range(4):
        chosen.append(sampler.sample(LOGITS, None))
        sampler.add(chosen[-1])
    # Token 0 has 2.0, then 1.1, then 0.7, which is less than the 1.0 of token 1.
    assert chosen == [0, 0, 1, 0]


def test_what_a_grammar_allows_goes_before_what_bans() -> None:
    params = SamplingParams(temperature=0.0, allowed_token_ids=(0,), logit_bias={2: -math.inf})
    only = np.array([False, False, True, False, False])
    assert Sampler(params, 0, (), frozenset({2})).sample(LOGITS, only) == 2


numbers = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


@given(
    logits=st.lists(numbers, min_size=2, max_size=20),
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 30),
    min_p=st.floats(0, 1),
    penalty=st.floats(0.01, 100),
    seed=st.integers(),
)
def test_any_logits_give_a_token(logits: list[float], seed: int, penalty: float, **narrow) -> None:
    """With warnings as errors: nothing overflows, nothing is divided by zero."""
    params = SamplingParams(seed=seed, repetition_penalty=penalty, **narrow)
    sampler = Sampler(params, 0, (0,), frozenset({1}))
    assert 0 <= sampler.sample(np.array(logits, np.float32), None) < len(logits)


def test_logprobs() -> None:
    entry = token_logprob(LOGITS, 1, 2, str)
    assert (entry.token_id, entry.token) == (1, "1")
    assert math.exp(entry.logprob) == pytest.approx(PROBABILITIES[1], abs=1e-3)
    assert [top.token_id for top in entry.top] == [0, 1]
    assert [math.exp(top.logprob) for top in entry.top] == pytest.approx(
        PROBABILITIES[:2], abs=1e-3
    )
    assert token_logprob(LOGITS, 1, 0, str).top == ()


def test_what_is_not_done_is_said() -> None:
    assert {"mirostat", "dry_multiplier", "typical_p"} <= UNSUPPORTED
    assert not {"temperature", "stop", "constraint", "seed"} & UNSUPPORTED
