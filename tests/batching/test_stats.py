"""What a batching engine tells of itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.drafts import Drafter
from enginebay.engine.batching.runner import RunnerMemory
from tests.batching.model import CONTEXT, make_engine, request
from tests.run import Run

PROMPT = list(range(2, 40))


def test_of_running_and_waiting() -> None:
    engine = make_engine(max_batch_size=2)
    run = Run(
        engine, *(request([2, 3, index], id=str(index), max_tokens=4) for index in range(4, 8))
    )
    run.steps(1)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (2, 2, 6)
    assert stats.kv_total == 8 * CONTEXT
    assert (stats.drafted, stats.accepted) == (None, None)
    run.finish()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)


@pytest.mark.parametrize("shares", [True, False])
def test_shared_tokens_count_once(shares: bool) -> None:
    engine = make_engine(RunnerMemory(slots=8, tokens=8 * CONTEXT, shares=shares), batch_tokens=64)
    run = Run(engine, request(PROMPT, n=2, max_tokens=4))
    run.steps(1)
    run.steps(1)
    own = 2
    assert engine.stats().kv_used == (len(PROMPT) + own if shares else 2 * len(PROMPT) + own)


def test_of_the_prefix_cache() -> None:
    engine = make_engine()
    for _ in range(2):
        Run(engine, request(PROMPT, max_tokens=1)).finish()
    stats = engine.stats()
    assert (stats.cache_queries, stats.cache_hits) == (2 * len(PROMPT), len(PROMPT) - 1)


def test_of_preemption() -> None:
    engine = make_engine(RunnerMemory(slots=4, tokens=CONTEXT))
    long: dict[str, Any] = {"max_tokens": CONTEXT // 2 - 2, "ignore_eos": True}
    Run(engine, *(request([2 + index], id=str(index), **long) for index in range(3))).finish()
    assert engine.stats().preempted


def test_of_guessed_tokens() -> None:
    """Of two tokens the first is right, once."""
    truth = Run(make_engine(), request([2, 3], max_tokens=6)).finish().token_ids()

    class Guesses(Drafter):
        tokens = 2
        is_free = True

        def draft(
            self, wanted: Mapping[ChoiceState[Any], int]
        ) -> Mapping[ChoiceState[Any], Sequence[int]]:
            [choice] = wanted
            if len(choice.token_ids) != 4:
                return {}
            return {choice: [truth[2], truth[3] + 1]}

    engine = make_engine(drafter=Guesses())
    assert Run(engine, request([2, 3], max_tokens=6)).finish().token_ids() == truth
    stats = engine.stats()
    assert (stats.drafted, stats.accepted) == (2, 1)
