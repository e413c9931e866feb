"""Forced tokens among sampled ones: the same whatever else happens in the batch."""

import pytest

from enginebay import GenerationRequest
from enginebay.engine.batching.drafts import PromptLookup
from enginebay.engine.batching.runner import RunnerMemory
from tests.batching.model import CONTEXT, Numbers, budget, expected, make_engine, request
from tests.run import Run

BIG = RunnerMemory(slots=8, tokens=8 * CONTEXT)


def budgeted(tokens: int, prompt: list[int], id: str = "r", **fields: object) -> GenerationRequest:
    return request(prompt, id, reasoning_budget=budget(tokens), **fields)


@pytest.mark.parametrize("tokens", [0, 1, 4, 9, 50])
@pytest.mark.parametrize("n", [1, 3])
def test_thought_is_ended_in_every_choice(tokens: int, n: int) -> None:
    run = Run(make_engine(BIG))
    item = budgeted(tokens, [5, 6, 7], n=n, max_tokens=12, temperature=1.0)
    run.add(item)
    run.finish()
    for index in range(n):
        assert run.token_ids("r", index) == expected(item, index)


def test_forced_tokens_survive_preemption_and_company() -> None:
    run = Run(make_engine(RunnerMemory(slots=4, tokens=CONTEXT), max_batch_size=4))
    items = [
        budgeted(3 + number, [2 + number] * 8, id=str(number), max_tokens=20) for number in range(4)
    ]
    plain = request([9] * 5, id="plain", max_tokens=20)
    for item in [*items, plain]:
        run.add(item)
    run.finish()
    for item in items:
        assert run.token_ids(item.request_id) == expected(item)


def test_a_draft_that_is_not_what_is_forced_is_rejected() -> None:
    # The prompt quotes what closes thought, and goes on otherwise.
    prompt = [5, 40, 41, 7, 5, 40, 41, 8, 5]
    for tokens in range(6):
        run = Run(make_engine(BIG, drafter=PromptLookup(4)))
        item = budgeted(tokens, prompt, max_tokens=14)
        run.add(item)
        run.finish()
        assert run.token_ids("r") == expected(item)


def test_forced_tokens_are_tokens_of_the_completion() -> None:
    run = Run(make_engine(BIG))
    item = budgeted(2, [5, 6], max_tokens=4)
    run.add(item)
    run.finish()
    assert run.token_ids("r") == expected(item)[:4]
    assert run.token_ids("r")[2:] == [40, 41]
    assert Numbers().decode(run.token_ids("r")) == run.text("r")
