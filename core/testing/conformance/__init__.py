"""Checks from outside whether a server follows OpenAI's protocol, for any server and model.

`enginebay conformance URL` prints what they find, row by row. What depends on the words of a model
cannot be seen from outside; the tests of Enginebay see to that (docs/reference/conformance.md).
"""

from core.testing.conformance import (
    access,
    answers,
    errors,
    logprobs,
    sdk,
    streams,
    structured_output,
    texts,
    tool_choice,
    tools,
    usage,
)
from core.testing.conformance.endpoint import Endpoint, NoSuchModelError, connect
from core.testing.conformance.rows import Row, find_ids, load_rows
from core.testing.conformance.run_checks import Check, Outcome, Result, run_checks

CHECKS: tuple[Check, ...] = (
    *access.CHECKS,
    *answers.CHECKS,
    *streams.CHECKS,
    *usage.CHECKS,
    *logprobs.CHECKS,
    *tools.CHECKS,
    *tool_choice.CHECKS,
    *structured_output.CHECKS,
    *texts.CHECKS,
    *sdk.CHECKS,
    *errors.CHECKS,
)

__all__ = [
    "CHECKS",
    "Check",
    "Endpoint",
    "NoSuchModelError",
    "Outcome",
    "Result",
    "Row",
    "connect",
    "find_ids",
    "load_rows",
    "run_checks",
]
