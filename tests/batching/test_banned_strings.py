"""Texts that a completion never has: tokens are taken back, whatever else happens. ENG-5"""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from enginebay import (
    GenerationRequest,
    InvalidRequestError,
    Pattern,
    RepetitionDetection,
    Sampled,
    SamplingParams,
    sequence,
)
from enginebay.engine.batching.drafts import PromptLookup
from enginebay.engine.batching.taking_back import Uncertain
from tests.batching.model import (
    CLOSE,
    EOS,
    VOCAB_SIZE,
    budget,
    letters,
    make_compiler,
    make_engine,
    next_token,
)
from tests.batching.model import request as any_request
from tests.batching.test_constraints import MEMORIES, WHOLE
from tests.effort import examples
from tests.run import Run

COMPILER = make_compiler()
BANNED = st.lists(st.text("abcdefGHI", min_size=1, max_size=3), min_size=1, max_size=12)


def request(prompt: list[int], id: str = "r", **fields: Any) -> GenerationRequest:
    return any_request(prompt, id, **{"max_tokens": 12, **fields})


def alone(item: GenerationRequest) -> Run:
    return Run(make_engine(WHOLE, compiler=COMPILER), item).finish()


def expected(item: GenerationRequest, index: int) -> list[int]:
    """Taken back and tried again, without anything else."""
    said: list[int] = []
    forbidden: dict[int, set[int]] = {}
    banned = [text.lower() for text in item.sampling.banned_strings]
    while len(said) < (item.sampling.max_tokens or 0):
        mask = None
        if here := forbidden.get(len(said)):
            bits = np.full(2, -1, np.int32)
            for token_id in here:
                bits.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            mask = bits
        chance = index if item.sampling.temperature else 0
        said.append(next_token([*item.prompt_token_ids, *said], chance, mask))
        if said[-1] == EOS:
            break
        text = letters(said).lower()
        if found := [at for each in banned if (at := text.find(each)) >= 0]:
            spoken = [place for place, token_id in enumerate(said) if token_id >= 2]
            at = spoken[min(found)]
            while at and said[at - 1] < 2:  # without a text: the beginning of what follows
                at -= 1
            forbidden = {place: ids for place, ids in forbidden.items() if place <= at}
            forbidden.setdefault(at, set()).add(said[at])
            del said[at:]
    return said


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, GenerationRequest]]:
    return [
        (
            draw(st.integers(0, 4)),
            request(
                draw(st.sampled_from([[], [2, 3, 4, 5, 6, 7, 9]]))
                + draw(st.lists(st.integers(2, 49), min_size=1, max_size=6)),
                id=str(number),
                n=draw(st.integers(1, 3)),
                temperature=draw(st.sampled_from([0.0, 1.0])),
                banned_strings=tuple(draw(BANNED)),
            ),
        )
        for number in range(draw(st.integers(1, 4)))
    ]


@pytest.mark.parametrize("memory", MEMORIES)
@examples(40)
@given(arrivals=requests(), draft=st.booleans(), aborted=st.sets(st.integers(0, 3), max_size=1))
def test_in_any_traffic(
    memory: str,
    arrivals: list[tuple[int, GenerationRequest]],
    draft: bool,
    aborted: set[int],
) -> None:
    drafter = PromptLookup(3) if draft and MEMORIES[memory].cuts else None
    engine = make_engine(MEMORIES[memory], drafter=drafter, compiler=COMPILER)
    run = Run(engine).traffic(arrivals, aborted)
    for number, (_, item) in enumerate(arrivals):
        for index in range(0 if number in aborted else item.n):
            key = (item.request_id, index)
            assert run.token_ids(*key) == expected(item, index)
            assert run.text(*key) == letters(run.token_ids(*key))
            for text in item.sampling.banned_strings:
                assert text.lower() not in run.text(*key).lower()
            deltas = run.deltas[key]
            assert all(delta.finish_reason is None for delta in deltas[:-1])
    assert all(sampler.released for sampler in engine._runner.samplers)


@pytest.mark.parametrize("memory", MEMORIES)
@examples(40)
@given(
    banned=st.lists(st.text("abcdgqrsB", min_size=1, max_size=2), min_size=1, max_size=4),
    kind=st.sampled_from(["pattern", "budget", "stop", "both", "repetition"]),
    start=st.integers(2, 49),
    draft=st.booleans(),
)
def test_beside_other_params(
    memory: str, banned: list[str], kind: str, start: int, draft: bool
) -> None:
    pattern = sequence("Begin", Pattern("[a-dqrs]{4,8}"), "end")
    fields: dict[str, Any] = {
        "pattern": {"constraint": pattern, "max_tokens": 30},
        "budget": {"reasoning_budget": budget(3)},
        "both": {
            "constraint": sequence(Pattern("[a-z]{2,30}"), letters(CLOSE), pattern),
            "reasoning_budget": budget(4),
            "max_tokens": 50,
        },
        "stop": {"stop": ("g", "ab"), "max_tokens": 30},
        "repetition": {
            "repetition_detection": RepetitionDetection(max_pattern_size=2, min_count=2),
            "max_tokens": 30,
        },
    }[kind]
    item = request([start, 9], banned_strings=tuple(banned), n=2, temperature=1.0, **fields)
    drafter = PromptLookup(3) if draft and MEMORIES[memory].cuts else None
    run = Run(make_engine(MEMORIES[memory], drafter=drafter, compiler=COMPILER), item).finish()
    reference = alone(item)
    assert bool(run.errors) == bool(reference.errors)
    assume(not run.errors)
    for index in range(2):
        assert run.token_ids("r", index) == reference.token_ids("r", index)
        text = run.text("r", index)
        assert text == reference.text("r", index)
        assert run.last("r", index).stop_reason == reference.last("r", index).stop_reason
        if kind in ("stop", "repetition"):
            assert not any(each.lower() in text.lower() for each in banned)
        if kind == "pattern" and run.last("r", index).finish_reason == "stop":
            assert text.startswith("Begin")  # what is demanded comes all the same
            assert text.endswith("end")


def test_nothing_is_left_to_say() -> None:
    everything = tuple(letters(range(2, VOCAB_SIZE)))
    run = Run(make_engine(compiler=COMPILER), request([2], banned_strings=everything)).finish()
    # 0 and the end of the sequence have no text
    assert run.text() == ""
    params = SamplingParams(banned_strings=everything, allowed_token_ids=(5, 6))
    uncertain = Uncertain(params)
    uncertain.tokens.append((Sampled(5), False))
    uncertain.take_back(1)
    uncertain.tokens.append((Sampled(6), False))
    with pytest.raises(InvalidRequestError) as caught:
        uncertain.take_back(1)
    assert caught.value.param == "banned_strings"


@pytest.mark.parametrize("memory", MEMORIES)
@examples(20)
@given(banned=BANNED, told=st.integers(0, 8))
def test_thought_is_ended_meanwhile(memory: str, banned: list[str], told: int) -> None:
    engine = make_engine(MEMORIES[memory], compiler=COMPILER)
    run = Run(engine, request([7], banned_strings=tuple(banned), max_tokens=20)).steps(told + 1)
    said = run.token_ids()
    assert engine.end_reasoning("r", budget(0)) == 1
    token_ids = run.finish().token_ids()
    assert token_ids[: len(said)] == said
    close = next(at for at in range(20) if tuple(token_ids[at : at + 3]) == CLOSE)
    assert close >= len(said)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("start", [46, 47, 49])
def test_thought_is_ended_twice(memory: str, start: int) -> None:
    """The second time while what ends it is forced, before the answer is taken back."""

    def ended(calls: int, banned: str) -> list[int]:
        engine = make_engine(MEMORIES[memory], compiler=COMPILER)
        item = request([start], banned_strings=(banned,), max_tokens=20)
        run = Run(engine, item).steps(4)
        for _ in range(calls):
            assert engine.end_reasoning("r", budget(0)) in (0, 1)
            run.steps(1)
        return run.finish().token_ids()

    once = ended(1, "zz")
    close = next(at for at in range(20) if tuple(once[at : at + 3]) == CLOSE)
    first_of_answer = letters(once[close + 3 :])[:1]
    assert ended(1, first_of_answer) == ended(2, first_of_answer)


@examples(200)
@given(banned=st.text("abc", min_size=2, max_size=4), start=st.integers(2, 49))
def test_where_few_letters_come_again_and_again(banned: str, start: int) -> None:
    engine = make_engine(WHOLE, compiler=COMPILER)
    few = sequence(Pattern("[abc]{30}"))
    item = request([start], constraint=few, banned_strings=(banned,), max_tokens=30)
    run = Run(engine, item).finish()
    assert len(run.text("r")) == 30
    assert banned not in run.text("r")
