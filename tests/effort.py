"""How much is tried: everything with `--thorough`, else what can be waited for at each change.

Without it tests marked `thorough` are left out, which are slow and fail where quicker ones fail
too; and laws are tried with a quarter of their examples. Tests that are named by their ids run in
any case.
"""

import os
from collections.abc import Container, Iterable
from typing import Any

import pytest
from hypothesis import settings

# A slow machine is no failure; and a change that lands must not depend on luck.
settings.register_profile("quick", deadline=None, max_examples=25, derandomize="CI" in os.environ)
settings.register_profile("thorough", deadline=None, max_examples=100)


def examples(count: int, **more: Any) -> settings:
    """For laws that want another number of examples than 100; a quarter of it as a rule."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100), **more)


def some(values: Iterable[Any], keep: Container[Any]) -> list[Any]:
    """Parameters of a test or a fixture, of which only those to keep are for every run."""
    rest = pytest.mark.thorough
    return [value if value in keep else pytest.param(value, marks=rest) for value in values]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests away that only a thorough run has, unless they are asked for."""
    chosen = "thorough" in config.option.markexpr or all("::" in name for name in config.args)
    if config.getoption("thorough", default=False) or chosen:
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("thorough")]
