"""Limits of lengths that differ from what a request asks for: named, or refused."""

from collections.abc import Sequence

from enginebay.chat.plan.prompt_tokens import PromptTokens, exceeds_window
from enginebay.chat.plan.strictness import accept_clamped, accept_ignored
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.config.schema import ServerConfig
from enginebay.models.served import ServedModel


def beyond(
    body: GenerationBody, prompts: Sequence[PromptTokens], server: ServerConfig
) -> tuple[str, ...]:
    """The name of a limit that these prompts exceed: it shortens none, as it does elsewhere."""
    if not exceeds_window(body, prompts):
        return ()
    accept_ignored(["truncation_length"], server)
    return ("truncation_length",)


def clamped(
    body: GenerationBody,
    prompts: Sequence[PromptTokens] | None,
    model: ServedModel,
    most_tokens: int | None,
    server: ServerConfig,
) -> dict[str, int]:
    """The maximum length of the answer, if less than requested.

    `prompts`: None where the context length is not known. `most_tokens`: see `planned_params`.
    """
    room = None
    if prompts is not None:
        room = model.info.context_length - max(len(prompt.token_ids) for prompt in prompts)
    limits = [limit for limit in (room, most_tokens) if limit is not None]
    asked = body.max_tokens or 0
    too_many = bool(limits) and asked > min(limits)
    if not too_many or model.overrides.gives("max_tokens", asked):
        return {}
    found = {"max_tokens": min(limits)}
    accept_clamped(found, server)
    return found
