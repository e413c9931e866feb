"""Logprobs of prompts: each from the tokens before it, however the prompt is computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest
from enginebay.engine.batching.runner import RunnerMemory
from tests.batching.model import CONTEXT, expected, make_engine, request, surprise
from tests.effort import examples
from tests.run import Run

MEMORIES = {
    "roomy": RunnerMemory(slots=8, tokens=8 * CONTEXT),
    "tight": RunnerMemory(slots=4, tokens=CONTEXT),
    "shared": RunnerMemory(slots=6, tokens=CONTEXT + 10, shares=True),
    "recurrent": RunnerMemory(slots=4, tokens=2 * CONTEXT, cuts=False),
}
PREFIX = list(range(2, 30))


def check(run: Run, item: GenerationRequest) -> None:
    prompt = item.prompt_token_ids
    for index in range(item.n):
        assert run.token_ids(item.request_id, index) == expected(item, index)
    first, *rest = [d for i in range(item.n) for d in run.deltas[item.request_id, i]]
    assert not any(delta.prompt_logprobs for delta in rest)
    assert first.prefill_tokens + first.cached_tokens == len(prompt)
    if item.sampling.prompt_logprobs is None:
        assert first.prompt_logprobs is None
        return
    assert first.cached_tokens == 0
    assert first.prompt_logprobs
    nothing, *entries = first.prompt_logprobs
    assert nothing is None
    assert [entry and (entry.token_id, entry.logprob) for entry in entries] == [
        (prompt[at], surprise(prompt[:at], prompt[at])) for at in range(1, len(prompt))
    ]


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, GenerationRequest]]:
    """Requests that begin alike, with and without logprobs, and when each comes."""
    return [
        (
            draw(st.integers(0, 4)),
            request(
                draw(st.sampled_from([[], PREFIX]))
                + draw(st.lists(st.integers(2, 49), min_size=1)),
                id=str(number),
                n=draw(st.integers(1, 3)),
                max_tokens=draw(st.integers(1, 8)),
                priority=draw(st.integers(0, 2)),
                prompt_logprobs=draw(st.sampled_from([None, 0, 0])),
            ),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


@pytest.mark.parametrize("memory", MEMORIES)
@examples(60)
@given(arrivals=requests())
def test_every_entry_is_of_its_own_place(
    memory: str, arrivals: list[tuple[int, GenerationRequest]]
) -> None:
    # VLLM-97
    run = Run(make_engine(MEMORIES[memory]))
    arrivals = [(wait, item) for wait, item in arrivals if len(item.prompt_token_ids) < CONTEXT]
    for wait, item in arrivals:
        run.steps(wait)
        run.add(item)
    run.finish()
    assert not run.errors
    for _, item in arrivals:
        check(run, item)


def test_rows_are_computed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.engine.batching.step._PROMPT_ROWS", 4)
    engine = make_engine()
    items = [request(PREFIX, id=str(number), prompt_logprobs=0) for number in range(3)]
    run = Run(engine, *items).finish()
    for item in items:
        check(run, item)
    runs = engine._runner.runs
    rows = [sum(c.logits for c in chunks if len(c.token_ids) == c.logits > 1) for chunks in runs]
    assert max(rows) == 4


def test_an_engine_that_takes_prompts_whole_says_so() -> None:
    memory = RunnerMemory(slots=4, tokens=4 * CONTEXT, cuts=False, chunks=False)
    engine = make_engine(memory)
    assert "prompt_logprobs" in engine.info.unsupported
    run = Run(engine, request(PREFIX, prompt_logprobs=0)).finish()
    assert run.deltas["r", 0][0].prompt_logprobs is None
