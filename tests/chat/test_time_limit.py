"""How long an answer may take. ENG-11"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from enginebay.chat.answer.time_limit import LimitedTime, TimeLimit
from enginebay.contract.types import Delta, Prefill


class Clock:
    """Each delta takes a second, and so does each look at the prompt."""

    def __init__(self) -> None:
        self.now = 0.0
        self.closed = False

    def __call__(self) -> float:
        return self.now

    async def say(self, deltas: Sequence[Delta]) -> AsyncGenerator[Delta, None]:
        try:
            for delta in deltas:
                self.now += 1
                yield delta
        finally:
            self.closed = True


def said(limit: TimeLimit, deltas: Sequence[Delta], choices: int = 1) -> tuple[list[Delta], bool]:
    async def run() -> tuple[list[Delta], bool]:
        clock = Clock()
        timed = LimitedTime(limit, choices, clock)
        async with (
            aclosing(clock.say(deltas)) as source,
            aclosing(timed.deltas(source)) as limited,
        ):
            found = [delta async for delta in limited]
        assert clock.closed
        return found, timed.passed

    return asyncio.run(run())


def texts(*said: str, index: int = 0) -> list[Delta]:
    return [Delta(index=index, text=text, token_ids=(1,)) for text in said]


def test_from_the_first_token_on() -> None:
    prompt = [Delta(prefill=Prefill(9, 0, 3))] * 50
    found, passed = said(TimeLimit(3), [*prompt, *texts(*"abcdefgh")])
    assert "".join(delta.text for delta in found) == "abcd"  # at 0, 1, 2 and 3 seconds
    assert passed


def test_what_is_in_time_ends_as_it_does() -> None:
    deltas = [*texts(*"abc"), Delta(finish_reason="stop")]
    assert said(TimeLimit(4), deltas) == (deltas, False)


def test_up_to_the_end_of_a_line() -> None:
    deltas = texts("a", "\n", "b", "c", "d", "e\nf", "g")
    found, passed = said(TimeLimit(2.5, at_line_end=True), deltas)
    assert [delta.text for delta in found] == ["a", "\n", "b", "c", "d", "e\nf"]
    assert (found[-1].finish_reason, found[-1].stop_reason, passed) == (
        "length",
        "max_seconds",
        True,
    )


def test_each_choice_up_to_its_own_line_end() -> None:
    one, two = texts("a", "b", "\n", "c"), texts("A", "B", "C", "\n", "D", index=1)
    mixed = [delta for pair in zip(one, two, strict=False) for delta in pair]
    found, _ = said(TimeLimit(1, at_line_end=True), mixed, choices=2)
    ends = {delta.index: delta.text for delta in found if delta.finish_reason}
    assert ends == {0: "\n", 1: "\n"}


def test_an_engine_that_says_nothing_more() -> None:
    async def run() -> tuple[list[Delta], bool]:
        async def silent() -> AsyncGenerator[Delta, None]:
            yield Delta(text="a", token_ids=(1,))
            await asyncio.get_running_loop().create_future()

        timed = LimitedTime(TimeLimit(0.01), 1)
        async with aclosing(silent()) as source:
            return [delta async for delta in timed.deltas(source)], timed.passed

    found, passed = asyncio.run(run())
    assert ([delta.text for delta in found], passed) == (["a"], True)
