"""Defines and runs checks."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from enginebay_conformance.endpoint import Endpoint
from enginebay_conformance.expect import Mismatch, NotShown, Unsupported

Outcome = Literal["pass", "fail", "skip"]
Feature = Literal["grammars", "prompts", "continuous usage"]
"""What a server may lack: structured output, text completions, and usage in every chunk.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that can be seen from outside, and the rows it is evidence for.

    `optional`: what the server may say that it does not support, which is no failure.
    """

    rows: tuple[str, ...]
    run: Callable[[Endpoint], None]
    optional: Feature | None = None

    @property
    def name(self) -> str:
        """The function's name, by which tests know it."""
        return self.run.__name__

    @property
    def what(self) -> str:
        """What must be true, in a line."""
        return inspect.getdoc(self.run) or ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check; `seen` is what was seen, or why it was skipped."""

    check: Check
    outcome: Outcome
    seen: str = ""


def check(
    *rows: str, optional: Feature | None = None
) -> Callable[[Callable[[Endpoint], None]], Check]:
    """Make a check of a function, which raises `Mismatch`, or `NotShown`, or passes."""
    return lambda run: Check(rows, run, optional)


def run_checks(endpoint: Endpoint, checks: Iterable[Check]) -> Iterator[Result]:
    """Run checks one by one; nothing that a server does ends the run."""
    for each in checks:
        yield _run(endpoint, each)


def _run(endpoint: Endpoint, check: Check) -> Result:
    try:
        check.run(endpoint)
    except NotShown as reason:
        return Result(check, "skip", str(reason))
    except Mismatch as seen:
        refused = check.optional is not None and isinstance(seen, Unsupported)
        return Result(check, "skip" if refused else "fail", str(seen))
    except Exception as error:  # no JSON where some should be, a connection that breaks
        return Result(check, "fail", f"{type(error).__name__}: {error}")
    return Result(check, "pass")
