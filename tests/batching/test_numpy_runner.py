"""Sampling from rows of numpy, for many choices at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from enginebay import Chunk, GenerationRequest, NumpyRunner, Rows, RunnerMemory, SamplingParams

SIZE = 30


class Sampling(NumpyRunner):
    memory = RunnerMemory(slots=1, tokens=1)

    def __init__(self) -> None:
        super().__init__(SIZE, {0}, str)

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        raise NotImplementedError

    def copy(self, source: int, target: int, tokens: int) -> None:
        raise NotImplementedError

    def cut(self, slot: int, tokens: int) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError


def request(prompt: tuple[int, ...] = (1,), **params: Any) -> GenerationRequest:
    sampling = SamplingParams(**params)
    return GenerationRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling)


def rows(count: int) -> Any:
    return np.random.default_rng(4).standard_normal((count, SIZE)).astype(np.float32)


ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.0, "logit_bias": {7: 100.0}},
    {"seed": 3},
    {"seed": 3, "mirostat": 2},
]


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 4, 0, 2, 1]])
def test_a_row_gives_the_same_in_company(listed: bool, order: list[int]) -> None:
    runner, logits = Sampling(), rows(5)
    before = logits.copy()
    found = runner.sample(
        list(logits) if listed else logits,
        order,
        [runner.sampler(request(**params), 0) for params in ASKED],
        [None] * 5,
    )
    assert (logits == before).all()
    for row, params, sampled in zip(order, ASKED, found, strict=True):
        alone = runner.sample(logits, [row], [runner.sampler(request(**params), 0)], [None])
        assert alone == [sampled]
    assert found[0].token_id == logits[order[0]].argmax()
    assert found[2].token_id == 7
    assert found[1].logprob
    assert found[1].logprob.top[0].token_id == found[1].token_id
    assert found[3].logprob is None


def test_a_row_that_is_no_number_is_an_error() -> None:
    runner, logits = Sampling(), rows(2)
    logits[1, 3] = np.nan
    samplers = [runner.sampler(request(temperature=0.0), index) for index in range(2)]
    with pytest.raises(FloatingPointError):
        runner.sample(logits, [0, 1], samplers, [None, None])


def test_ends_wait_for_min_tokens() -> None:
    runner, logits = Sampling(), rows(1)
    logits[0, :2] = 50.0, 40.0
    sampler = runner.sampler(request(temperature=0.0, min_tokens=2, stop_token_ids=(1,)), 0)
    first = runner.sample(logits, [0], [sampler], [None])[0].token_id
    assert first not in (0, 1)
    runner.force(logits, 0, sampler, 5)
    assert runner.sample(logits, [0], [sampler], [None])[0].token_id == 0


def test_logprobs_are_of_the_model_itself() -> None:
    runner, logits = Sampling(), rows(2)
    entries = runner.logprobs(logits, [1, 0], [4, 5], 1)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = [entry.logprob for entry in entries]
    np.testing.assert_allclose(found, [expected[1, 4], expected[0, 5]], rtol=1e-5)
    assert entries[0].top[0].token_id == logits[1].argmax()
