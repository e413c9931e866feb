"""Completions that keep to grammars: the same whatever else happens in the batch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import (
    Free,
    GenerationRequest,
    Grammar,
    InvalidRequestError,
    Pattern,
    Repeat,
    ServingError,
    Text,
    UnsupportedParameterError,
    UpTo,
    choice,
    sequence,
)
from enginebay.contract.grammar import Lark
from enginebay.engine.batching.drafts import PromptLookup
from enginebay.engine.batching.runner import RunnerMemory
from tests.batching.model import (
    CLOSE,
    CONTEXT,
    HashRunner,
    budget,
    letters,
    make_compiler,
    make_engine,
)
from tests.batching.model import request as any_request
from tests.effort import examples
from tests.run import Run

BIG = RunnerMemory(slots=8, tokens=8 * CONTEXT)
WHOLE = RunnerMemory(slots=8, tokens=8 * CONTEXT, cuts=False, chunks=False)
MEMORIES = {
    "roomy": BIG,
    "tight": RunnerMemory(slots=4, tokens=CONTEXT),
    "shared": RunnerMemory(slots=6, tokens=CONTEXT + 10, shares=True),
    "recurrent": RunnerMemory(slots=4, tokens=2 * CONTEXT, cuts=False),
    "whole": RunnerMemory(slots=4, tokens=4 * CONTEXT, cuts=False, chunks=False),
}
ROWS = choice("abcdefg", "hi", "hjklmnop", Pattern("[qrs]"))
TABLE = sequence("Begin", Repeat(ROWS, 2, 4), "Q")
THOUGHT = sequence(UpTo(letters(CLOSE)), TABLE)
COMPILER = make_compiler()


def request(prompt: list[int], id: str = "r", **fields: Any) -> GenerationRequest:
    return any_request(prompt, id, **{"constraint": TABLE, "max_tokens": 50, **fields})


def alone(item: GenerationRequest) -> Run:
    """On a model that has no chunks, for which every token is a step of its own."""
    return Run(make_engine(WHOLE, compiler=COMPILER), item).finish()


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, GenerationRequest]]:
    """Requests and after how many steps each comes."""
    return [
        (
            draw(st.integers(0, 4)),
            request(
                draw(st.sampled_from([[], [2, 3, 4, 5, 6, 7, 9], [9, 11, 12, 14, 6, 7]]))
                + draw(st.lists(st.integers(2, 49), min_size=1, max_size=6)),
                id=str(number),
                n=draw(st.integers(1, 3)),
                temperature=draw(st.sampled_from([0.0, 1.0])),
                priority=draw(st.integers(0, 1)),
                stop=draw(st.sampled_from([(), (), ("k",), ("gab",)])),
                **draw(
                    st.sampled_from(
                        [
                            {},
                            {"max_tokens": 1},
                            {"max_tokens": 9},
                            {"constraint": None, "max_tokens": 9},
                            {"constraint": THOUGHT, "reasoning_budget": budget(3)},
                            {"constraint": Free()},
                        ]
                    )
                ),
            ),
        )
        for number in range(draw(st.integers(1, 5)))
    ]


@pytest.mark.parametrize("memory", MEMORIES)
@examples(40)
@given(arrivals=requests(), draft=st.booleans(), aborted=st.sets(st.integers(0, 4), max_size=1))
def test_traffic_never_changes_an_answer(
    memory: str,
    arrivals: list[tuple[int, GenerationRequest]],
    draft: bool,
    aborted: set[int],
) -> None:
    drafter = PromptLookup(3) if draft and MEMORIES[memory].cuts else None
    engine = make_engine(MEMORIES[memory], drafter=drafter, compiler=COMPILER)
    run = Run(engine).traffic(arrivals, aborted)
    for number, (_, item) in enumerate(arrivals):
        if number in aborted:
            continue
        expected = alone(item)
        for index in range(item.n):
            key = (item.request_id, index)
            assert run.token_ids(*key) == expected.token_ids(*key)
            assert run.text(*key) == expected.text(*key)
            last, wanted = run.last(*key), expected.last(*key)
            assert (last.finish_reason, last.stop_reason) == (
                wanted.finish_reason,
                wanted.stop_reason,
            )
    assert all(sampler.released for sampler in engine._runner.samplers)


def test_answers_survive_the_failure_of_others() -> None:
    engine = make_engine(BIG, compiler=COMPILER, poison_tokens=frozenset({45}))
    bad = any_request([45], "bad")
    items = [request([number, 9], str(number), temperature=1.0, n=2) for number in (5, 6)]
    run = Run(engine, items[0])
    run.steps(2)
    run.add(bad)
    run.add(items[1])
    run.finish()
    assert set(run.errors) == {"bad"}
    for item in items:
        for index in range(2):
            key = (item.request_id, index)
            assert run.token_ids(*key) == alone(item).token_ids(*key)


def test_what_must_come_is_run_as_one_chunk() -> None:
    engine = make_engine(BIG, compiler=COMPILER)
    item = request([5, 6], constraint=sequence("abcdefgh", choice("i", "j"), "k"))
    run = Run(engine, item).finish()
    assert run.text() in ("abcdefghik", "abcdefghjk")
    assert run.token_ids()[:8] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert run.last().finish_reason == "stop"
    chunks = [len(chunk.token_ids) for chunks in engine._runner.runs for chunk in chunks]
    assert len(chunks) == 2
    assert chunks[1] > 6


def test_forced_tokens_keep_to_the_budget_of_a_step() -> None:
    engine = make_engine(BIG, compiler=COMPILER, batch_tokens=4, prefill_tokens=4)
    text = letters(range(2, 40))
    run = Run(engine, request([5], constraint=sequence(text, choice("S", "T")))).finish()
    assert run.token_ids()[:38] == list(range(2, 40))
    runner: HashRunner = engine._runner
    assert max(sum(len(chunk.token_ids) for chunk in chunks) for chunks in runner.runs) == 4


@pytest.mark.parametrize("most", range(1, 14))
def test_no_forced_token_is_too_many(most: int) -> None:
    run = Run(make_engine(BIG, compiler=COMPILER), request([5], max_tokens=most)).finish()
    assert len(run.token_ids()) <= most
    if len(run.token_ids()) == most:
        assert run.last().finish_reason == "length" or run.text().endswith("Q")


@pytest.mark.parametrize(
    ("grammar", "stop", "kept", "reason"),
    [
        ("abc", "b", False, "length"),
        ("abc", "b", True, "length"),
        ("abc", "c", True, "stop"),
        (sequence("a", Repeat(Text("bc"))), "b", False, "stop"),
        (sequence("a", Repeat(Text("bc"))), "c", False, "length"),
        (sequence("a", Repeat(Text("bc"), 1)), "b", False, "length"),
        (sequence("a", Repeat(Text("bc"), 1)), "bc", False, "length"),
        (sequence("a", Repeat(Text("bc"), 1)), "c", True, "stop"),
        (Free(), "a", False, "stop"),
    ],
)
def test_what_a_stop_string_leaves_decides(
    grammar: str | Grammar, stop: str, kept: bool, reason: str
) -> None:
    grammar = Text(grammar) if isinstance(grammar, str) else grammar
    for seed in range(20):
        item = request(
            [5 + seed], constraint=grammar, stop=(stop,), include_stop_str_in_output=kept
        )
        run = Run(make_engine(BIG, compiler=COMPILER), item).finish()
        if run.last().stop_reason == stop:
            assert run.last().finish_reason == reason
            break
    else:
        raise AssertionError("no seed met the stop string")


def test_behind_thought_the_grammar_decides() -> None:
    # What closes thought leads on to an answer, but a call has to follow.
    grammar = sequence(UpTo(letters(CLOSE[:2])), "call")
    run = Run(
        make_engine(BIG, compiler=COMPILER),
        request([5], constraint=grammar, reasoning_budget=budget(3)),
    ).finish()
    assert run.text()[3:] == letters(CLOSE[:2]) + "call"
    assert run.last().finish_reason == "stop"


def test_logits_that_leave_nothing_are_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(BIG, compiler=COMPILER)
    monkeypatch.setattr("tests.batching.model.next_token", lambda *args: 0)
    run = Run(engine, request([5], n=3, constraint=choice("ab", "ba"))).finish()
    assert type(run.errors["r"]) is ServingError
    assert "logits" in run.errors["r"].message
    assert all(sampler.released for sampler in engine._runner.samplers)


def test_an_engine_without_a_compiler_says_so() -> None:
    engine = make_engine(BIG)
    assert not engine.info.constraints
    assert make_engine(BIG, compiler=COMPILER).info.constraints
    for ask in (lambda: engine.compile(TABLE), lambda: engine.add_request(request([5]))):
        with pytest.raises(UnsupportedParameterError):
            ask()


def test_a_wrong_grammar_is_no_request() -> None:
    engine = make_engine(BIG, compiler=COMPILER)
    with pytest.raises(InvalidRequestError):
        engine.add_request(request([5], constraint=Lark("start: nothing")))
    assert not engine._requests


def test_seconds_are_those_of_the_choice() -> None:
    engine = make_engine(BIG, compiler=COMPILER)
    run = Run(engine, request([5], n=2), any_request([5, 6], "free")).finish()
    for index in range(2):
        assert sum(delta.grammar_s for delta in run.deltas["r", index]) > 0
    assert not any(delta.grammar_s for delta in run.deltas["free", 0])
