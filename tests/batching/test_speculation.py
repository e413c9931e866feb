"""When drafts pay, on a machine whose steps take as long as a formula says."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.drafts import Drafter, Predictions, PromptLookup
from enginebay.engine.batching.model_drafter import DraftModel, ModelDrafter
from enginebay.engine.batching.runner import Chunk
from enginebay.engine.batching.speculation import Speculation
from tests.batching.model import CONTEXT, VOCAB_SIZE, make_engine, next_token, request
from tests.batching.test_scheduling import MEMORIES, check, expected, held_nothing, requests
from tests.effort import examples
from tests.run import Run

Times = Callable[[int, int], float]  # seconds of a step of so many choices with so many drafts


@dataclass(eq=False)
class Text:
    """What stands for a choice: its tokens do not matter, only which of a draft are right."""

    rate: float
    token_ids: list[int] = field(default_factory=list)


class Machine:
    """Decodes texts with drafts, as an engine would, and counts the time."""

    def __init__(
        self,
        times: Times,
        *,
        tokens: int = 8,
        round_seconds: float = 0.0,
        even: bool = False,
        second_length: float = 0.0,
    ) -> None:
        """`second_length`: seconds for each length of drafts in a step but the first."""
        self.now = 0.0
        self.drafted = 0
        self.second_lengths = 0
        self._second_length = second_length
        self._times = times
        self._tokens = tokens
        self._round_seconds = round_seconds
        self._speculation = Speculation(lambda: self.now, even=even)
        self._random = random.Random(1)

    def run(self, texts: Sequence[Text], steps: int) -> float:
        """Tokens a second, beside those without drafts."""
        began, before = self.now, sum(len(text.token_ids) for text in texts)
        for _ in range(steps):
            self._step(texts)
        tokens = sum(len(text.token_ids) for text in texts) - before
        return tokens / (self.now - began) / (len(texts) / self._times(len(texts), 0))

    def _step(self, texts: Sequence[Any]) -> None:
        self._speculation.ended(texts)
        free = not self._round_seconds
        offered = dict.fromkeys(texts, self._tokens)
        planned = self._speculation.plan(len(texts), offered, 64, free=free)
        if planned and not free:
            rounds = max(planned.values())
            self.now += rounds * self._round_seconds
            self._speculation.drafted(rounds, rounds * self._round_seconds)
        drafts = {text: [1] * planned.get(text, 0) for text in texts}
        for text in texts:
            if free or planned.get(text):
                self._speculation.watch(text, [1] * (self._tokens if free else planned[text]))
        self._speculation.begins(texts, drafts, alone=True)
        drafted = sum(planned.values())
        self.drafted += drafted
        lengths = len({planned.get(text, 0) for text in texts})
        self.second_lengths += lengths - 1
        self.now += self._times(len(texts), drafted) + (lengths - 1) * self._second_length
        for text in texts:
            for _ in range(planned.get(text, 0) + 1):
                text.token_ids.append(int(self._random.random() < text.rate))
                if text.token_ids[-1] != 1:
                    break


def free_rows(choices: int, drafted: int) -> float:
    return 1.0


def dear_rows(choices: int, drafted: int) -> float:
    return 1.0 + choices + drafted


def second_pass(choices: int, drafted: int) -> float:
    return 1.0 + 0.9 * bool(drafted) + 0.02 * drafted


def full_at_16(choices: int, drafted: int) -> float:
    return max(1.0, (choices + drafted) / 16)


@pytest.mark.parametrize("times", [free_rows, dear_rows, second_pass, full_at_16])
@pytest.mark.parametrize("choices", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("round_seconds", [0.0, 0.1])
def test_drafts_never_cost_much(
    times: Times, choices: int, rate: float, round_seconds: float
) -> None:
    # ENG-7
    machine = Machine(times, round_seconds=round_seconds)
    assert machine.run([Text(rate) for _ in range(choices)], 800) > 0.97


@pytest.mark.parametrize("times", [free_rows, dear_rows, second_pass, full_at_16])
@pytest.mark.parametrize("choices", [1, 4, 16])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("round_seconds", [0.0, 0.3])
def test_drafts_that_are_never_right_cost_less_than_a_hundredth_in_the_end(
    times: Times, choices: int, even: bool, round_seconds: float
) -> None:
    # ENG-7
    machine = Machine(times, round_seconds=round_seconds, even=even, second_length=1.0)
    for _ in range(12):  # answers, of which none says anything of the next
        machine.run([Text(0.0) for _ in range(choices)], 100)
    machine.drafted, before = 0, machine.now
    for _ in range(12):
        machine.run([Text(0.0) for _ in range(choices)], 100)
    assert machine.drafted < 0.01 * 1200 * choices
    assert machine.now - before < 1.01 * 1200 * times(choices, 0)


def test_trials_wait_the_longer_the_more_they_cost() -> None:
    machine = Machine(free_rows, round_seconds=40.0)  # such as a long prompt that has to be read
    assert machine.run([Text(0.0)], 100) < 0.8  # nothing was known
    machine.drafted, before = 0, machine.now
    machine.run([Text(0.0)], 20_000)
    assert 0 < machine.drafted < 4
    assert machine.now - before < 1.01 * 20_000


def test_drafts_are_of_one_length_where_that_is_faster() -> None:
    def speed(*, even: bool) -> tuple[float, int]:
        machine = Machine(
            lambda choices, drafted: 1.0 + 0.02 * drafted, even=even, second_length=0.8
        )
        texts = [Text(rate) for rate in (0.95, 0.9, 0.8, 0.7)]
        machine.run(texts, 300)
        before = machine.second_lengths
        return machine.run(texts, 600), machine.second_lengths - before

    (fast, few), (slow, many) = speed(even=True), speed(even=False)
    assert fast > 1.1 * slow
    assert few < 60 < many


def test_some_are_drafted_for_alone_where_even_that_pays() -> None:
    machine = Machine(lambda choices, drafted: 1.0 + 0.02 * drafted, even=True, second_length=0.3)
    right, wrong = [Text(0.95) for _ in range(3)], [Text(0.0)]
    assert machine.run(right + wrong, 600) > 2
    assert len(wrong[0].token_ids) < 700


@pytest.mark.parametrize("choices", [1, 4, 16])
def test_drafts_that_are_right_are_run_for_any_number_of_choices(choices: int) -> None:
    # ENG-7
    texts = [Text(0.9) for _ in range(choices)]
    assert Machine(free_rows).run(texts, 400) > 3
    assert Machine(second_pass).run(texts, 400) > (1.2 if choices < 16 else 0.97)
    assert Machine(free_rows, round_seconds=0.1).run(texts, 400) > 2


def test_only_texts_that_repeat_get_drafts() -> None:
    machine = Machine(full_at_16)
    right, wrong = [Text(0.95) for _ in range(2)], [Text(0.0) for _ in range(6)]
    assert machine.run(right + wrong, 600) > 1.3
    assert min(len(text.token_ids) for text in right) > 2500
    assert machine.drafted < 1.3 * sum(len(text.token_ids) for text in right)


def test_drafts_begin_again_when_they_would_pay_again() -> None:
    for round_seconds in (0.0, 0.1):
        machine = Machine(free_rows, round_seconds=round_seconds)
        text = Text(0.0)
        machine.run([text], 600)
        text.rate = 0.95
        machine.run([text], 600)
        assert machine.run([text], 100) > 2


def test_one_long_pause_is_not_believed() -> None:
    pauses = iter([*[0.0] * 50, 500.0])

    def times(choices: int, drafted: int) -> float:
        return 1.0 + (next(pauses, 0.0) if drafted else 0.0)

    machine = Machine(times)
    machine.run([Text(0.9)], 200)
    assert next(pauses, None) is None
    assert Machine(free_rows).run([Text(0.9)], 200) > 3
    assert machine.run([Text(0.9)], 200) > 3


class Oracle(Drafter):
    """Knows what the model says, and says something else every now and then."""

    tokens = 4

    def __init__(self, is_free: bool, wrong: int) -> None:
        self.is_free = is_free
        self._wrong = wrong

    def draft(
        self, wanted: Mapping[ChoiceState[Any], int]
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        drafts = {}
        for choice, tokens in wanted.items():
            text = list(choice.token_ids)
            for _ in range(tokens):
                token = next_token(text, choice.sampler.index)
                text.append(token + 1 if self._wrong and len(text) % self._wrong == 0 else token)
            drafts[choice] = text[-tokens:]
        return drafts


class Wrong(DraftModel):
    """Never says what the model says, and counts what it reads."""

    slots, length, tokens = 8, CONTEXT, 8 * CONTEXT
    vocab_size, batch_tokens = VOCAB_SIZE, 16

    def __init__(self, spend: Callable[[float], None]) -> None:
        self.read = 0
        self._spend = spend
        self._texts: list[list[int]] = [[] for _ in range(self.slots)]

    def next_tokens(self, chunks: Sequence[Chunk]) -> list[int]:
        found = []
        for chunk in chunks:
            self.read += len(chunk.token_ids)
            self._spend(0.1 + 0.01 * len(chunk.token_ids))
            text = self._texts[chunk.slot]
            text += chunk.token_ids
            found.append(next_token(text) - 1)
        return found

    def cut(self, slot: int, tokens: int) -> None:
        del self._texts[slot][tokens:]


def test_a_draft_model_that_is_never_right_computes_next_to_nothing_in_the_end() -> None:
    # ENG-7
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    model = Wrong(spend)
    engine = make_engine(drafter=ModelDrafter(model, 4), clock=lambda: now)
    run_model = engine._runner.run

    def run(chunks: Sequence[Chunk]) -> list[list[int]]:
        spend(1.0 + 0.1 * sum(len(chunk.token_ids) for chunk in chunks))
        return run_model(chunks)

    engine._runner.run = run  # type: ignore[method-assign]

    def answers(first: int, last: int) -> tuple[int, float]:
        """How many tokens were said, and of each how many were computed for nothing."""
        read, before = model.read, engine.stats()
        said = 0
        for number in range(first, last):
            items = [
                request([2 + number % 40, 2 + place], id=f"{number} {place}", max_tokens=60)
                for place in range(4)
            ]
            finished = Run(engine, *items).finish()
            said += sum(len(finished.token_ids(item.request_id)) for item in items)
        drafted = (engine.stats().drafted or 0) - (before.drafted or 0)
        accepted = (engine.stats().accepted or 0) - (before.accepted or 0)
        assert not accepted
        return said, (model.read - read + drafted) / said

    answers(0, 40)
    said, wasted = answers(40, 100)
    assert said == 60 * 4 * 60
    assert 0 < wasted < 0.01


def test_a_draft_model_reads_nothing_for_others_that_a_salt_keeps_apart() -> None:
    """SEC-7: how soon drafts come would tell what others have asked."""

    def read(before: str | None, salt: str | None) -> int:
        """Tokens of a prompt that the draft model reads after the same one with another salt."""
        model = Wrong(lambda seconds: None)
        drafter, prompt = ModelDrafter(model, 1), list(range(2, 22))
        for number, each in enumerate((before, salt)):
            item = request(prompt, id=str(number), cache_salt=each)
            state: ChoiceState[Any] = ChoiceState(item, 0, number, None, None, slot=0)  # type: ignore[arg-type]
            model.read = 0
            while not drafter.ready({state: 1}):
                pass
            state.slot = None
        return model.read

    for salts in ((None, None), ("a", "a")):
        assert read(*salts) == 0
    for salts in ((None, "a"), ("a", None), ("a", "b")):
        assert read(*salts) == read("x", "y") > 16


@pytest.mark.parametrize("memory", [name for name in MEMORIES if MEMORIES[name].cuts])
@examples(40)
@given(
    arrivals=requests(),
    aborted=st.sets(st.integers(0, 6)),
    free=st.booleans(),
    wrong=st.integers(0, 5),
    seconds=st.lists(st.floats(0.0, 4.0), min_size=1, max_size=20),
)
def test_whatever_is_drafted_no_answer_changes(
    memory: str,
    arrivals: list[Any],
    aborted: set[int],
    free: bool,
    wrong: int,
    seconds: list[float],
) -> None:
    # ENG-7
    now, calls = 0.0, 0

    def clock() -> float:
        nonlocal now, calls
        now, calls = now + seconds[calls % len(seconds)], calls + 1
        return now

    engine = make_engine(
        MEMORIES[memory], drafter=Oracle(free, wrong), clock=clock, max_batch_size=6
    )
    run = Run(engine).traffic(arrivals, aborted)
    for number, (_, item) in enumerate(arrivals):
        if number not in aborted:
            check(run, item)
    assert held_nothing(engine)


def test_choices_of_one_request_are_drafted_together() -> None:
    engine = make_engine(drafter=Oracle(is_free=True, wrong=0), max_batch_size=6)
    item = request([3, 4], n=6, max_tokens=40, temperature=1.0)
    run = Run(engine, item).finish()
    check(run, item)
    assert len(engine._runner.runs) < 25
    stats = engine.stats()
    assert stats.drafted
    assert stats.accepted == stats.drafted


def test_a_text_that_goes_round_is_drafted_to_the_length_that_is_asked_for() -> None:
    lookup = PromptLookup(5)
    choice: Any = Text(0.0, [7, 8, 9, 7, 8, 9, 7, 8])
    choice.slot = 0
    assert lookup.draft({choice: 5}) == {choice: [9, 7, 8, 9, 7]}


def test_the_place_with_most_in_common_is_taken() -> None:
    lookup = PromptLookup(2)
    choice: Any = Text(0.0, [1, 2, 3, 4, 5, 9, 9, 9, 3, 4, 6, 8, 1, 2, 3, 4])
    choice.slot = 0
    assert lookup.draft({choice: 2}) == {choice: [5, 9]}
    choice.token_ids[-4:] = [8, 3, 4]  # as if the rest was taken back
    assert lookup.draft({choice: 2}) == {choice: [5, 9]}  # of two as good the one nearby
    assert PromptLookup(2).draft({choice: 2}) == {choice: [6, 8]}


def test_a_prediction_is_drafted_from_its_beginning_and_after_a_change() -> None:
    item = replace(request([3, 4]), predicted_token_ids=tuple(range(20, 40)))
    choice: Any = Text(0.0, [3, 4])
    choice.slot, choice.request = 0, item
    predictions = Predictions()

    def drafted(*said: int) -> Sequence[int]:
        choice.token_ids[2:] = said
        return predictions.draft({choice: 3}).get(choice, ())

    assert list(drafted()) == [20, 21, 22]
    assert list(drafted(20)) == [21, 22, 23]
    assert list(drafted(20, 21, 22)) == [23, 24, 25]
    assert list(drafted(20, 21, 22, 7)) == [24, 25, 26]
    assert list(drafted(20, 21, 22, 7, 24)) == [25, 26, 27]
    assert list(drafted(20, 21, 22, 7, 24, 25)) == [26, 27, 28]
    assert not drafted(7)
    assert list(drafted(20, 21, 22, 7, 8, 9, 24, 25)) == [26, 27, 28]  # two tokens more
    assert list(drafted(20, 21, 22, 7, 8, 9, 24, 25, 7)) == [27, 28, 29]


def test_a_prediction_saves_steps_of_the_model_and_is_counted() -> None:
    # ENG-7
    item = request([3, 4], max_tokens=40)
    answer = expected(item)
    answer[20] = 2 + (answer[20] - 1) % 40
    predicted = replace(item, predicted_token_ids=tuple(answer))
    engine = make_engine()
    run = Run(engine, predicted).finish()
    check(run, item)
    assert len(engine._runner.runs) < 20
    deltas = run.deltas["r", 0]
    drafted = sum(delta.drafted_tokens for delta in deltas)
    accepted = sum(delta.accepted_tokens for delta in deltas)
    assert drafted > accepted > 30
    stats = engine.stats()
    assert (stats.drafted, stats.accepted) == (drafted, accepted)
