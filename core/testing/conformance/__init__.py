"""Does a server speak OpenAI's protocol? Checks from outside, of any server with any model.

`enginebay conformance URL` prints what they find, row by row. What depends on the words of a model
cannot be seen from outside; the tests of Enginebay see to that (docs/conformance.md).
"""

from core.testing.conformance import (
    access,
    answers,
    constraints,
    errors,
    logprobs,
    sdk,
    streams,
    texts,
    tool_choice,
    tools,
    usage,
)
from core.testing.conformance.check import Check, Outcome, Result, run_checks
from core.testing.conformance.endpoint import Endpoint, NoSuchModelError, connect
from core.testing.conformance.rows import Row, find_ids, load_rows

CHECKS: tuple[Check, ...] = (
    *access.CHECKS,
    *answers.CHECKS,
    *streams.CHECKS,
    *usage.CHECKS,
    *logprobs.CHECKS,
    *tools.CHECKS,
    *tool_choice.CHECKS,
    *constraints.CHECKS,
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
