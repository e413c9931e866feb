"""All checks, by API."""

from collections.abc import Mapping

from enginebay_conformance import (
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
from enginebay_conformance.run_checks import Check

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
