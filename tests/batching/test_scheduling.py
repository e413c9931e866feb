"""The scheduler under any traffic: every answer is what it would be alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest, InvalidRequestError
from enginebay.engine.batching.drafts import PromptLookup
from enginebay.engine.batching.runner import MemoryFullError, RunnerMemory
from tests.batching.model import CONTEXT, EOS, HashEngine, budget, expected, make_engine, request
from tests.effort import examples
from tests.run import Run

BIG = RunnerMemory(slots=8, tokens=8 * CONTEXT)
MEMORIES = {
    "roomy": BIG,
    "tight": RunnerMemory(slots=4, tokens=CONTEXT),
    "shared": RunnerMemory(slots=6, tokens=CONTEXT + 10, shares=True),
    "recurrent": RunnerMemory(slots=4, tokens=2 * CONTEXT, cuts=False),
    "whole": RunnerMemory(slots=4, tokens=4 * CONTEXT, cuts=False, chunks=False),
    "whole and tight": RunnerMemory(slots=4, tokens=CONTEXT, cuts=False, chunks=False),
    "one slot": RunnerMemory(slots=1, tokens=CONTEXT),
    "neighbours": RunnerMemory(slots=4, tokens=4 * CONTEXT, neighbours=True, even=True),
    "one adapter": RunnerMemory(slots=4, tokens=CONTEXT, one_adapter=True),
}

PREFIXES = [[], list(range(2, 40)), list(range(2, 20)), [7] * 30]


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, GenerationRequest]]:
    """Requests and after how many steps each comes."""
    arrivals = []
    for number in range(draw(st.integers(1, 7))):
        tail = draw(st.lists(st.integers(2, 49), min_size=1, max_size=12))
        arrivals.append(
            (
                draw(st.integers(0, 6)),
                request(
                    draw(st.sampled_from(PREFIXES)) + tail,
                    id=str(number),
                    n=draw(st.integers(1, 3)),
                    max_tokens=draw(st.integers(1, 14)),
                    temperature=draw(st.sampled_from([0.0, 1.0])),
                    adapter=draw(st.sampled_from([None, None, "tuned", "other"])),
                    priority=draw(st.integers(0, 2)),
                    cache_salt=draw(st.sampled_from([None, None, "mine"])),
                    reasoning_budget=draw(st.sampled_from([None, None, budget(0), budget(4)])),
                ),
            )
        )
    return arrivals


def held_nothing(engine: HashEngine) -> bool:
    scheduler = engine._scheduler
    return not (scheduler.waiting or scheduler.running or engine._requests)


def check(run: Run, item: GenerationRequest) -> None:
    for index in range(item.n):
        assert run.token_ids(item.request_id, index) == expected(item, index)


@pytest.mark.parametrize("memory", MEMORIES)
@examples(60)
@given(
    arrivals=requests(),
    aborted=st.sets(st.integers(0, 6)),
    steps=st.integers(0, 5),
    draft=st.booleans(),
    data=st.data(),
)
def test_traffic_never_changes_an_answer(
    memory: str,
    arrivals: list[tuple[int, GenerationRequest]],
    aborted: set[int],
    steps: int,
    draft: bool,
    data: st.DataObject,
) -> None:
    chosen = MEMORIES[memory]
    n = 1 if memory == "one slot" else 3
    drafter = PromptLookup(3) if draft and chosen.cuts else None
    engine = make_engine(chosen, drafter=drafter, max_batch_size=data.draw(st.integers(n, 6)))
    run = Run(engine).traffic(arrivals, aborted, steps=steps)
    for number, (_, item) in enumerate(arrivals):
        if number in aborted:
            continue
        check(run, item)
        first = run.deltas[item.request_id, 0][0]
        assert first.prefill_tokens + first.cached_tokens == len(item.prompt_token_ids)
        assert first.prefill_tokens > 0
        later = [d for i in range(item.n) for d in run.deltas[item.request_id, i]][1:]
        assert not any(d.prefill_tokens or d.cached_tokens for d in later)
    assert held_nothing(engine)
    assert all(sampler.released for sampler in engine._runner.samplers)


# One bad request never fails another.


@pytest.mark.parametrize("memory", ["roomy", "tight", "shared", "recurrent", "whole"])
@examples(40)
@given(arrivals=requests(), poisoned=st.sets(st.integers(0, 6), max_size=2))
def test_a_poisonous_request_fails_alone(
    memory: str, arrivals: list[tuple[int, GenerationRequest]], poisoned: set[int]
) -> None:
    engine = make_engine(MEMORIES[memory], poison_tokens=frozenset({EOS}), max_batch_size=6)
    run = Run(engine)
    for number, (wait, item) in enumerate(arrivals):
        run.steps(wait)
        if number in poisoned:
            item = request((*item.prompt_token_ids, EOS, 5), id=item.request_id, n=item.n)
        run.add(item)
    run.finish()
    bad = {item.request_id for number, (_, item) in enumerate(arrivals) if number in poisoned}
    assert set(run.errors) == bad
    for number, (_, item) in enumerate(arrivals):
        if number not in poisoned:
            check(run, item)
    assert held_nothing(engine)


def test_a_failing_sampler_fails_its_request_alone() -> None:
    run = Run(make_engine(), request([5, 6], id="good", n=2), request([5, 6], id="bad", top_k=13))
    run.finish()
    assert set(run.errors) == {"bad"}
    assert "cannot take this" in run.errors["bad"].message
    check(run, request([5, 6], id="good", n=2))


def test_a_batch_that_is_too_large_is_made_smaller() -> None:
    engine = make_engine(largest_batch=2, max_batch_size=6)
    items = [request([5, number], id=str(number)) for number in range(2, 8)]
    run = Run(engine, *items).finish()
    assert not run.errors
    for item in items:
        check(run, item)


def test_a_model_that_runs_nothing_any_more_is_dead() -> None:
    engine = make_engine()
    run = Run(engine, request([5, 6], max_tokens=40)).steps(3)
    engine._runner.dead = True
    with pytest.raises(Exception, match="too many"):
        run.finish()


# What is computed, and in which order.


def forward_tokens(engine: HashEngine) -> int:
    return engine._runner.forward_tokens


def test_a_prompt_is_prefilled_once_for_all_choices() -> None:
    engine = make_engine(max_batch_size=8)
    Run(engine, request(range(2, 22), n=8, max_tokens=3)).finish()
    assert forward_tokens(engine) == 20 + 8 * 2


def test_choices_beyond_the_batch_run_only_the_last_prompt_token_again() -> None:
    engine = make_engine(max_batch_size=2)
    item = request(range(2, 22), n=5, max_tokens=3, temperature=1.0)
    run = Run(engine, item).finish()
    check(run, item)
    assert forward_tokens(engine) == 20 + 3 * 1 + 5 * 2


def test_a_repeated_prompt_is_prefilled_but_for_its_last_token() -> None:
    engine = make_engine()
    first = Run(engine, request(range(2, 42), max_tokens=1)).finish()
    assert first.deltas["r", 0][0].cached_tokens == 0
    second = Run(engine, request(range(2, 42), max_tokens=1)).finish()
    assert second.deltas["r", 0][0].cached_tokens == 39
    assert forward_tokens(engine) == 41


@pytest.mark.parametrize("field", ["adapter", "cache_salt"])
def test_adapters_and_salts_do_not_share_a_cache(field: str) -> None:
    engine = make_engine()
    Run(engine, request(range(2, 42), max_tokens=1)).finish()
    run = Run(engine, request(range(2, 42), max_tokens=1, **{field: "tuned"})).finish()
    assert run.deltas["r", 0][0].cached_tokens == 0
    again = Run(engine, request(range(2, 42), max_tokens=1, **{field: "tuned"})).finish()
    assert again.deltas["r", 0][0].cached_tokens == 39


def test_a_conversation_goes_on_where_it_ended() -> None:
    for memory in (BIG, RunnerMemory(slots=4, tokens=4 * CONTEXT, cuts=False)):
        engine = make_engine(memory)
        prompt = list(range(2, 22))
        answer = Run(engine, request(prompt)).finish().token_ids()
        run = Run(engine, request([*prompt, *answer, 9, 9])).finish()
        # The token sampled last was never run.
        assert run.deltas["r", 0][0].cached_tokens == len(prompt) + len(answer) - 1


def test_requests_that_arrive_together_prefill_what_they_share_once() -> None:
    engine = make_engine()
    shared = list(range(2, 42))
    items = [request([*shared, tail], id=str(tail), max_tokens=1) for tail in range(2, 6)]
    run = Run(engine, *items).finish()
    assert forward_tokens(engine) == 41 + 3
    for item in items:
        check(run, item)


def test_a_running_choice_lends_its_prompt_and_goes_on() -> None:
    engine = make_engine()
    run = Run(engine, request(range(2, 22), id="first", max_tokens=20)).steps(4)
    run.add(request(range(2, 22), id="second"))
    run.finish()
    assert run.deltas["second", 0][0].cached_tokens == 19
    check(run, request(range(2, 22), id="first", max_tokens=20))
    check(run, request(range(2, 22), id="second"))


def test_a_long_remembered_prompt_is_not_lost_to_a_short_one_like_it() -> None:
    engine = make_engine()
    Run(engine, request(range(2, 49), max_tokens=1)).finish()
    Run(engine, request([*range(2, 8), 9], max_tokens=1)).finish()
    run = Run(engine, request(range(2, 49), max_tokens=1)).finish()
    assert run.deltas["r", 0][0].cached_tokens == 46


def test_a_long_prompt_does_not_stall_those_who_decode() -> None:
    engine = make_engine(prefill_tokens=4)
    run = Run(engine, request([5, 6], id="short", max_tokens=30)).steps(1)
    run.add(request(range(2, 42), id="long", max_tokens=1))
    run.steps(9)
    assert len(run.deltas["short", 0]) == 10
    assert not run.deltas["long", 0]
    run.steps(1)
    assert run.deltas["long", 0]
    sizes = [sum(len(c.token_ids) for c in chunks) for chunks in engine._runner.runs]
    assert max(sizes) == 5


def test_many_prompts_at_once_get_more_of_a_step() -> None:
    engine = make_engine(prefill_tokens=4, batch_tokens=10, max_batch_size=8)
    run = Run(engine, request([5, 6], id="short", max_tokens=30)).steps(1)
    for number in range(2, 5):
        run.add(request([number] * 20, id=str(number), max_tokens=1))
    run.steps(1)
    assert sum(len(c.token_ids) for c in engine._runner.runs[-1]) == 10
    run.finish()


def test_prompts_beside_others_leave_no_tile_nearly_empty() -> None:
    """Attention takes as long for one token more than a tile as for two tiles."""
    for even, beside in ((False, 2), (True, 0)):
        memory = RunnerMemory(slots=4, tokens=4 * CONTEXT, even=even, tile=8)
        engine = make_engine(memory, prefill_tokens=8)
        run = Run(engine, request([5, 6], id="a", max_tokens=30)).steps(1)
        run.add(request([7, 8], id="b", max_tokens=30))
        run.steps(1)
        run.add(request(range(2, 42), id="long", max_tokens=1))
        run.steps(7)
        runs = [[len(c.token_ids) for c in chunks] for chunks in engine._runner.runs[-7:]]
        lengths = [max(run) for run in runs if max(run) > 1][:3]
        assert [(length + beside) % 8 for length in lengths] == [0, 0, 0]
        run.finish()


def test_with_caches_of_their_own_prompts_and_those_that_decode_take_turns() -> None:
    """Those that decode wait no longer than beside prompts, and then decode with more others."""
    memory = RunnerMemory(slots=8, tokens=8 * CONTEXT, even=True)
    engine = make_engine(memory, prefill_tokens=10, batch_tokens=10, max_batch_size=8)
    run = Run(engine, request([5, 6], id="short", max_tokens=30)).steps(2)
    for number in range(2, 9):
        run.add(request([number] * 10, id=str(number), max_tokens=3))
    run.finish()
    sizes = [[len(c.token_ids) for c in chunks] for chunks in engine._runner.runs]
    assert sizes[:10] == [[2], [1], *[[10]] * 4, [1] * 5, *[[10]] * 3]
    assert sizes[10] == [1] * 8


def test_a_prompt_alone_takes_whole_steps() -> None:
    engine = make_engine(batch_tokens=16, prefill_tokens=4)
    Run(engine, request(range(2, 42), max_tokens=1)).finish()
    assert [len(chunks[0].token_ids) for chunks in engine._runner.runs] == [16, 16, 8]


def test_the_youngest_gives_way_when_the_memory_is_full() -> None:
    engine = make_engine(RunnerMemory(slots=4, tokens=CONTEXT))
    old = request(range(2, 22), id="old", max_tokens=40)
    young = request([7, 8, 9], id="young", max_tokens=40)
    run = Run(engine, old).steps(3)
    run.add(young)
    preempted = False
    while not run.is_finished("old"):
        run.steps(1)
        preempted |= any(c.token_ids[3:] for c in engine._scheduler.waiting)
    assert preempted
    run.finish()
    check(run, old)
    check(run, young)


def test_what_made_the_memory_full_waits_until_another_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REAL-1: a KV cache that grows may find less memory than it hoped for."""
    engine = make_engine(RunnerMemory(slots=4, tokens=4 * CONTEXT))
    runner, refused = engine._runner, []
    run_chunks = runner.run

    def run_in_little(chunks: Any) -> Any:
        lengths = {slot: len(cells) for slot, cells in enumerate(runner.slots)}
        for chunk in chunks:
            lengths[chunk.slot] = chunk.start + len(chunk.token_ids)
        if sum(lengths.values()) > 70:
            refused.append(len(engine._runner.runs))
            raise MemoryFullError("there is not enough memory")
        return run_chunks(chunks)

    monkeypatch.setattr(runner, "run", run_in_little)
    old = request(range(2, 32), id="old", max_tokens=30)
    young = request(range(40, 49), id="young", max_tokens=30)
    run = Run(engine, old).steps(3)
    run.add(young)
    run.finish()
    check(run, old)
    check(run, young)
    assert 1 <= len(refused) <= 4


def test_lower_priority_numbers_start_first_and_are_preempted_last() -> None:
    engine = make_engine(max_batch_size=1)
    run = Run(engine, request([5], id="running", max_tokens=3)).steps(1)
    run.add(request([6], id="patient", priority=5))
    run.add(request([7], id="urgent", priority=-1))
    order = []
    for _ in range(30):
        for id, delta in engine.step():
            if delta.finish_reason:
                order.append(id)
    assert order == ["running", "urgent", "patient"]


def test_every_adapter_gets_its_turn() -> None:
    engine = make_engine(RunnerMemory(slots=4, tokens=4 * CONTEXT, one_adapter=True))
    items = [
        request([5, 6], id=str(adapter), adapter=adapter, max_tokens=10)
        for adapter in (None, "tuned", "other")
    ]
    run = Run(engine, *items).steps(12)
    counts = [len(run.deltas[str(item.adapter), 0]) for item in items]
    assert max(counts) - min(counts) <= 1
    run.finish()


def test_drafts_need_fewer_steps_for_the_same_answer() -> None:
    steps = {}
    for tokens in (0, 4):
        engine = make_engine(drafter=PromptLookup(tokens) if tokens else None)
        item = request([3, 4], max_tokens=40)
        answer = expected(item)
        quoted = request([3, 4, *answer[:20], 3, 4], id="quoted", max_tokens=12)
        run = Run(engine, quoted).finish()
        check(run, quoted)
        steps[tokens] = len(engine._runner.runs)
    assert steps[4] <= steps[0]


class BrokenDrafter(PromptLookup):
    def draft(self, wanted: Any) -> Any:
        raise RuntimeError("no guess")


def test_an_engine_whose_drafts_fail_goes_on_without() -> None:
    item = request([3, 4], max_tokens=12)
    run = Run(make_engine(drafter=BrokenDrafter(3)), item).finish()
    check(run, item)


def test_slots_are_taken_without_gaps_where_that_is_faster() -> None:
    engine = make_engine(RunnerMemory(slots=4, tokens=4 * CONTEXT, neighbours=True))
    run = Run(engine, *(request([number], id=str(number), max_tokens=30) for number in (5, 6, 7)))
    run.steps(2)
    run.abort("5")
    run.add(request([9], id="9", max_tokens=30))
    run.steps(2)
    assert sorted(chunk.slot for chunk in engine._runner.runs[-1]) == [0, 1, 2]


# What is refused.


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [5] * CONTEXT}, "prompt"),
        ({"prompt": [5, 50]}, "prompt"),
        ({"prompt": [5], "n": 0}, "n"),
        ({"prompt": [5], "adapter": "unknown"}, "model"),
        ({"prompt": [5], "max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_run_is_refused(fields: dict[str, Any], param: str) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request(request(**fields))
    assert caught.value.param == param
    assert held_nothing(engine)


def test_more_choices_than_fit_are_refused_where_a_prompt_cannot_be_run_again() -> None:
    engine = make_engine(MEMORIES["recurrent"], max_batch_size=2)
    with pytest.raises(InvalidRequestError, match="1 to 2 choices"):
        engine.add_request(request([5], n=3))
