"""How far prompts are read, for those who ask."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from enginebay import Delta, Prefill
from enginebay.engine.batching.runner import RunnerMemory
from tests.batching.model import CONTEXT, make_engine, request
from tests.effort import examples
from tests.run import Run


def told(run: Run, id: str = "r", index: int = 0) -> list[Prefill]:
    """What the deltas say, which have nothing else and come before all others."""
    deltas = run.deltas[id, index]
    reports = [delta for delta in deltas if delta.prefill]
    assert all(delta == Delta(prefill=delta.prefill) for delta in reports)
    assert deltas[: len(reports)] == reports
    return [delta.prefill for delta in reports if delta.prefill]


def test_each_step_that_reads() -> None:
    # LLS-3
    engine = make_engine(batch_tokens=8)
    asked = replace(request(range(2, 22), n=2, max_tokens=3), reports_prefill=True)
    run = Run(engine, asked).finish()
    assert told(run) == [Prefill(20, 0, done) for done in (8, 16, 20)]
    assert told(run, index=1) == []
    again = Run(engine, replace(asked, request_id="again")).finish()
    assert told(again, "again") == [Prefill(20, 19, 20)]


def test_nobody_else_is_told() -> None:
    run = Run(make_engine(batch_tokens=8), request(range(2, 22), max_tokens=3)).finish()
    assert told(run) == []
    assert make_engine().info.reports_prefill


@examples(60)
@given(
    prompts=st.lists(st.lists(st.integers(2, 49), min_size=1, max_size=30), min_size=1, max_size=6),
    tokens=st.integers(1, 12),
)
def test_in_any_traffic(prompts: list[list[int]], tokens: int) -> None:
    """It ends with the whole prompt, also of a choice that is preempted later."""
    memory = RunnerMemory(slots=4, tokens=CONTEXT)
    asked = [
        replace(request(prompt, id=str(at), max_tokens=12), reports_prefill=True)
        for at, prompt in enumerate(prompts)
    ]
    run = Run(make_engine(memory, batch_tokens=tokens), *asked).finish()
    for item in asked:
        reports = told(run, item.request_id)
        total = len(item.prompt_token_ids)
        assert reports[-1].done == total
        assert all(each.total == total for each in reports)
        assert all(each.cached == reports[0].cached <= each.done <= total for each in reports)
