"""Thought ended by force on the backend exllamav2, as on the others (OPS-8)."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from enginebay import Engine
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.test_reasoning_budget import asked
from tests.backends.test_reasoning_budget import (
    test_choices_and_company as test_choices_and_company,
)
from tests.backends.test_reasoning_budget import (
    test_logprobs_and_penalties_see_forced_tokens as test_logprobs_and_penalties_see_forced_tokens,
)
from tests.backends.test_reasoning_budget import (
    test_thought_ends_at_the_budget as test_thought_ends_at_the_budget,
)
from tests.backends.test_reasoning_budget import (
    test_thought_ends_when_it_is_told_to as test_thought_ends_when_it_is_told_to,
)
from tests.backends.test_reasoning_budget import (
    test_what_comes_behind_is_what_the_model_says_after_it as test_what_comes_behind_is_what_the_model_says_after_it,  # noqa: E501
)
from tests.run import Run
from tests.support import DEMO_MODEL


@pytest.fixture(scope="module")
def engine(load_exllamav2: LoadExLlamaV2) -> Iterator[Engine]:
    made: Engine = load_exllamav2(DEMO_MODEL)
    yield made
    made.close()


@pytest.mark.parametrize("told", range(1, 9))
def test_it_ends_while_tokens_are_held(engine: Engine, told: int) -> None:
    """Those that may begin a banned string come first, and then all that ends it."""
    free = Run(engine, asked(engine, None)).finish()
    thought = free.text().partition("</think>")[0]
    closing = tuple(engine.tokenize("\nOkay, enough.\n</think>", add_special_tokens=False))
    assert len(closing) > 2
    budget = asked(engine, 0).sampling.reasoning_budget
    assert budget
    item = asked(engine, None)
    banned = (thought[:-1] + "\x00",)  # so all of the thought is held until it ends
    item = replace(item, sampling=replace(item.sampling, banned_strings=banned))
    run = Run(engine, item).steps(told)
    assert not run.token_ids()
    assert engine.end_reasoning("r", replace(budget, close_token_ids=closing)) == 1
    token_ids = run.finish().token_ids()
    held = next(at for at in range(60) if tuple(token_ids[at : at + len(closing)]) == closing)
    assert token_ids[:held] == free.token_ids()[:held]
    assert held >= told - 1
