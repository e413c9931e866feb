"""Checks from outside whether a server follows its APIs, for any server and model.

`enginebay conformance URL` prints what they find, row by row. What depends on the words of a model
cannot be seen from outside; the tests of Enginebay see to that (docs/reference/conformance.md).
"""

from collections.abc import Mapping

from enginebay.testing.conformance import (
    access,
    answers,
    errors,
    kobold_api,
    logprobs,
    messages_api,
    ollama_api,
    responses_api,
    sdk,
    streams,
    structured_output,
    texts,
    tool_choice,
    tools,
    usage,
)
from enginebay.testing.conformance.endpoint import Endpoint, NoSuchModelError, connect
from enginebay.testing.conformance.rows import Row, find_ids, load_rows
from enginebay.testing.conformance.run_checks import Check, Outcome, Result, run_checks

GROUPS: Mapping[str, tuple[Check, ...]] = {
    "openai": (
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
    ),
    "responses": responses_api.CHECKS,
    "messages": messages_api.CHECKS,
    "ollama": ollama_api.CHECKS,
    "kobold": kobold_api.CHECKS,
}
"""The checks of each API: OpenAI's chats and completions, then the others."""

CHECKS = tuple(check for checks in GROUPS.values() for check in checks)

__all__ = [
    "CHECKS",
    "GROUPS",
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
