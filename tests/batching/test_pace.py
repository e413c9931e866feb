"""Prompts beside running streams: as many tokens a pass as keep it short (issue 20, scheduling)."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.batching.pace import PrefillPace
from enginebay.engine.batching.runner import Chunk, RunnerMemory
from tests.batching.model import make_engine, request
from tests.run import Run

MOST = 512


class Machine:
    """What any pass takes, and each token of a prompt."""

    def __init__(self, step: float, token: float) -> None:
        self.step, self.token = step, token
        self.pace = PrefillPace(MOST)

    def run(self, prompt_tokens: int, *, decodes: bool = True) -> float:
        """A pass; how long it took."""
        seconds = self.step + self.token * prompt_tokens
        self.pace.took(seconds, prompt_tokens, decodes=decodes)
        return seconds

    def settle(self) -> float:
        """How long passes take in the end."""
        for _ in range(20):
            self.run(0)
        for _ in range(40):
            last = self.run(self.pace.chunk_tokens())
        return last


def test_the_first_pass_is_short() -> None:
    assert PrefillPace(MOST).chunk_tokens() == 64
    assert PrefillPace(8).chunk_tokens() == 8
    assert PrefillPace(MOST, slowdown=2).chunk_tokens() == 1


def test_a_fast_machine_takes_as_much_as_it_may() -> None:
    machine = Machine(0.010, 0.00005)
    machine.settle()
    assert machine.pace.chunk_tokens() == MOST


def test_a_pass_is_kept_to_what_nobody_feels() -> None:
    assert 0.045 < Machine(0.005, 0.0003).settle() < 0.055


def test_a_slow_machine_is_slowed_down_by_a_few_steps() -> None:
    assert 3.8 < Machine(0.1, 0.003).settle() / 0.1 < 4.2


def test_the_end_of_a_prompt_says_nothing() -> None:
    machine = Machine(0.1, 0.003)
    machine.settle()
    before = machine.pace.chunk_tokens()
    machine.pace.took(0.2, 3, decodes=True)
    assert machine.pace.chunk_tokens() == before


@pytest.mark.parametrize("slowdown", [None, 1.1, 2.0, 1000.0])
@given(st.lists(st.tuples(st.integers(0, 600), st.booleans(), st.floats(0, 10)), max_size=30))
def test_whatever_passes_take_there_is_a_size(
    slowdown: float | None, passes: list[tuple[int, bool, float]]
) -> None:
    pace = PrefillPace(MOST, slowdown)
    for prompt_tokens, decodes, seconds in passes:
        pace.took(seconds, prompt_tokens, decodes=decodes)
        for prompts in (1, 3):
            fewest = 1 if slowdown else 64 * prompts
            assert fewest <= pace.chunk_tokens(prompts) <= prompts * MOST


SIZES = (0, 8, 16, 32, 64, 128, 256)
PASSES = {
    "hf": (20.4, 31.8, 50.8, 64.3, 114, 213, 422),
    "llamacpp": (17.9, 43.6, 65.8, 111, 190, 306, 545),
}
"""Milliseconds of four decoding rows with so many prompt tokens: `benchmarks/passes.py`."""

ALONE = {"hf": 380 / 256, "llamacpp": 470 / 256}
"""Milliseconds of a prompt's token with nobody else."""

BATCH = {"hf": 256, "llamacpp": 512}
PROMPT = [2 + place * place % 47 for place in range(4000)]


class Server:
    """An engine whose passes take what was measured, and its clock, in milliseconds."""

    def __init__(self, engine: str, slowdown: float | None, prefill_tokens: int) -> None:
        self.now = 0.0
        self._name = engine
        self._engine = make_engine(
            RunnerMemory(slots=8, tokens=40_000),
            clock=lambda: self.now / 1000,
            context_length=8192,
            max_batch_size=8,
            batch_tokens=BATCH[engine],
            prefill_tokens=prefill_tokens,
            prefill_slowdown=slowdown,
        )
        runner = self._engine._runner
        run = runner.run

        def timed(chunks: Sequence[Chunk]) -> list[list[int]]:
            self.now += self._takes(chunks)
            return run(chunks)

        runner.run = timed  # type: ignore[method-assign]

    def _takes(self, chunks: Sequence[Chunk]) -> float:
        prompts = sum(len(chunk.token_ids) for chunk in chunks if len(chunk.token_ids) > 1)
        if all(len(chunk.token_ids) > 1 for chunk in chunks):
            return prompts * ALONE[self._name]
        table = PASSES[self._name]
        beyond = max(0, prompts - SIZES[-1]) * ALONE[self._name]
        return float(np.interp(prompts, SIZES, table)) + beyond

    def alone(self) -> float:
        """The first token of the prompt, with nobody else."""
        began = self.now
        Run(self._engine, request(PROMPT, max_tokens=1)).finish()
        return self.now - began

    def beside(self, newcomers: int = 1) -> tuple[float, float]:
        """The worst gap of four streams in their usual steps, and when all have a first token."""
        streams = [request([5 + n], id=f"s{n}", max_tokens=6000) for n in range(4)]
        run = Run(self._engine, *streams).steps(12)
        began, worst = self.now, 0.0
        prompts = [[3 + n, *PROMPT[: 4000 // newcomers]] for n in range(newcomers)]
        asked = [request(prompt, id=f"new{prompt[0]}", max_tokens=1) for prompt in prompts]
        for each in asked:
            run.add(each)
        while not all(run.is_finished(each.request_id) for each in asked):
            before = self.now
            run.steps(1)
            worst = max(worst, self.now - before)
        return worst / PASSES[self._name][0], self.now - began


@pytest.mark.parametrize("engine", ["hf", "llamacpp"])
@pytest.mark.parametrize("newcomers", [1, 3])
def test_streams_stay_as_smooth_as_was_asked_for(engine: str, newcomers: int) -> None:
    worst, _ = Server(engine, 2.0, BATCH[engine]).beside(newcomers)
    assert worst <= 2


@pytest.mark.parametrize("engine", ["hf", "llamacpp"])
def test_a_newcomer_has_its_first_token_early_if_that_was_asked_for(engine: str) -> None:
    alone = Server(engine, 100.0, BATCH[engine]).alone()
    _, first = Server(engine, 100.0, BATCH[engine]).beside()
    assert first <= 1.15 * alone


@pytest.mark.parametrize("engine", ["hf", "llamacpp"])
def test_by_default_neither_pays_for_all(engine: str) -> None:
    alone = Server(engine, None, 256).alone()
    worst, first = Server(engine, None, 256).beside()
    assert worst < 12
    assert first < 1.7 * alone
