"""Prompts beside running streams: as many tokens a pass as keep it short (issue 20, scheduling)."""

from hypothesis import given
from hypothesis import strategies as st

from core.engine.batching.pace import Pace

MOST = 512


class Machine:
    """A clock that passes move on: what any pass takes, and each token of a prompt."""

    def __init__(self, step: float, token: float) -> None:
        self.step, self.token = step, token
        self.now = 0.0
        self.pace = Pace(MOST, lambda: self.now)

    def run(self, prompt_tokens: int, *, decodes: bool = True) -> float:
        """A pass; how long it took."""
        self.pace.starts(prompt_tokens, decodes=decodes)
        seconds = self.step + self.token * prompt_tokens
        self.now += seconds
        self.pace.ends()
        return seconds


def test_nothing_is_known_at_first() -> None:
    assert Pace(MOST).tokens == MOST


def test_a_fast_machine_takes_as_much_as_it_may() -> None:
    machine = Machine(0.010, 0.00005)
    machine.run(2048, decodes=False)
    machine.run(0)
    assert machine.pace.tokens == MOST


def test_a_pass_is_kept_to_what_nobody_feels() -> None:
    machine = Machine(0.005, 0.0003)
    machine.run(512, decodes=False)
    for _ in range(20):
        machine.run(0)
    for _ in range(20):
        last = machine.run(machine.pace.tokens)
    assert 0.045 < last < 0.055


def test_a_slow_machine_is_slowed_down_by_a_few_steps() -> None:
    machine = Machine(0.2, 0.006)
    machine.run(512, decodes=False)
    for _ in range(20):
        machine.run(0)
    for _ in range(20):
        last = machine.run(machine.pace.tokens)
    assert 3.8 < last / machine.step < 4.2


@given(st.lists(st.tuples(st.integers(0, 600), st.booleans(), st.floats(0, 10)), max_size=30))
def test_whatever_passes_take_there_is_a_size(passes: list[tuple[int, bool, float]]) -> None:
    machine = Machine(0, 0)
    for prompt_tokens, decodes, seconds in passes:
        machine.step = seconds
        machine.run(prompt_tokens, decodes=decodes)
        assert 64 <= machine.pace.tokens <= MOST


def test_a_pass_that_says_nothing_is_left_out() -> None:
    machine = Machine(0.01, 0.0001)
    machine.run(512, decodes=False)
    before = machine.pace.tokens
    machine.pace.starts(512, decodes=False)
    machine.now += 100
    machine.pace.starts(0, decodes=True)
    machine.pace.ends()
    assert machine.pace.tokens == before
