"""What a run leaves out, and what it never does."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from tests.effort import examples, leave_out, some

QUICK, SLOW = "test_a.py::quick", "test_a.py::slow"


def kept(*args: str, thorough: bool = False, markexpr: str = "") -> list[str]:
    """Of a quick test and one marked thorough, which are run; the others count as deselected."""
    marked = {SLOW: pytest.mark.thorough.mark}
    items: list[Any] = [
        SimpleNamespace(nodeid=id, get_closest_marker=lambda name, id=id: marked.get(id))
        for id in (QUICK, SLOW)
    ]
    gone: list[Any] = []
    config: Any = SimpleNamespace(
        args=args,
        option=SimpleNamespace(markexpr=markexpr),
        getoption=lambda name, default: thorough,
        hook=SimpleNamespace(pytest_deselected=lambda items: gone.extend(items)),
    )
    leave_out(config, items)
    assert {item.nodeid for item in [*items, *gone]} == {QUICK, SLOW}
    return [item.nodeid for item in items]


def test_what_is_marked_thorough_is_left_out() -> None:
    assert kept("tests") == kept("test_a.py") == kept("tests", markexpr="gpu") == [QUICK]


def test_what_is_asked_for_is_not() -> None:
    assert kept("tests", thorough=True) == [QUICK, SLOW]
    assert kept("tests", markexpr="thorough") == [QUICK, SLOW]
    assert kept("test_a.py::slow") == [QUICK, SLOW]


def test_parameters_that_are_not_kept_are_marked() -> None:
    one, two = some("ab", "b")
    assert (two, one.values, [mark.name for mark in one.marks]) == ("b", ("a",), ["thorough"])


def test_a_quarter_of_the_examples_is_tried_in_each_run(request: pytest.FixtureRequest) -> None:
    share = 1 if request.config.getoption("thorough") else 4
    assert settings.default.max_examples == 100 // share
    assert examples(200).max_examples == 200 // share
    assert examples(2).max_examples == max(1, 2 // share)
