"""The lane of the kernel: tests that need no wing. `--without NAME` runs them as if it was absent.

A test that uses routes of a wing is marked `wing("name")`. A module of tests that imports the
package of a wing needs no mark.
"""

import sys
from pathlib import Path

import pytest

LANE = tuple(
    f"tests/{folder}"
    for folder in (
        *("access", "api", "batching", "chat", "config", "engine", "grammar", "kv_store", "media"),
        *("models", "observe", "parsers", "sampler", "serving", "template", "usage"),
    )
)
"""Folders of tests of the kernel."""


def add_option(parser: pytest.Parser) -> None:
    """Add `--without`."""
    help = "run the tests as if the package of this wing was not installed"
    parser.addoption("--without", action="append", default=[], metavar="NAME", help=help)


def absent(config: pytest.Config) -> list[str]:
    """The packages that tests have to do without."""
    return [f"enginebay_{name}" for name in config.getoption("without", default=[])]


def hide(config: pytest.Config) -> None:
    """Make these packages unimportable."""
    for package in absent(config):
        sys.modules[package] = None  # type: ignore[assignment]


def needs_absent(path: Path, config: pytest.Config) -> bool:
    """Whether a module of tests imports one of these packages."""
    if not absent(config) or path.suffix != ".py":
        return False
    text = path.read_text(encoding="utf-8")
    return any(
        f"from {package}" in text or f"import {package}" in text for package in absent(config)
    )


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests away that need one of these wings."""
    without = {package.removeprefix("enginebay_") for package in absent(config)}
    kept = [
        item
        for item in items
        if not without & {name for mark in item.iter_markers("wing") for name in mark.args}
    ]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
