"""The tokens of a prompt with media in it."""

import re
from collections.abc import Sequence
from dataclasses import replace

from enginebay.chat.plan.prompt import Prompt
from enginebay.chat.plan.prompt_tokens import PromptTokens, check_prompt, check_text, kept_tokens
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.contract.errors import ContextLengthExceededError, InvalidRequestError, ServingError
from enginebay.contract.media import MediaPrompt, MediaSpan
from enginebay.contract.sampling_params import SamplingParams
from enginebay.models.served import ServedModel

_PARAM = re.compile(r"media\.(\d+)")


async def tokenize_media(model: ServedModel, prompt: Prompt, *, contexts: int = 1) -> MediaPrompt:
    """The tokens of a prompt with pieces, and which of them stand for items.

    An item that the engine cannot read is an `InvalidRequestError` with its path.
    """
    text = "".join(piece for piece in prompt.pieces if isinstance(piece, str))
    check_text(model, text, "messages", contexts=contexts)
    try:
        return await model.backend.tokenize_media(
            prompt.pieces, add_special_tokens=prompt.add_special_tokens
        )
    except ServingError as error:
        if found := _PARAM.fullmatch(error.param or ""):
            error.param = prompt.media_params[int(found[1])]
        raise


async def media_tokens(
    model: ServedModel, prompt: Prompt, body: GenerationBody, sampling: SamplingParams
) -> PromptTokens:
    """The tokens of a chat's prompt, as `prompt_tokens`; no item is truncated."""
    tokenized = await tokenize_media(model, prompt)
    keep = kept_tokens(body, model, sampling)
    token_ids, spans = list(tokenized.token_ids), tokenized.spans
    cut = 0 if keep is None else max(0, len(token_ids) - keep)
    if spans and spans[0].start < cut:
        raise InvalidRequestError(
            f"to keep {keep} tokens of the prompt, the {spans[0].media.kind} at its tokens "
            f"{spans[0].start} to {spans[0].end - 1} would be cut; leave it out of the request",
            param="truncate_prompt_tokens",
        )
    try:
        check_prompt(model, token_ids[cut:], "messages")
    except ContextLengthExceededError as error:
        sizes = _sizes(spans)
        error.message += f" Of these, {sizes}." if sizes else ""
        raise
    return PromptTokens(
        token_ids[cut:], cut, tuple(replace(span, start=span.start - cut) for span in spans)
    )


def _sizes(spans: Sequence[MediaSpan]) -> str:
    tokens: dict[str, int] = {}
    for span in spans:
        tokens[span.media.kind] = tokens.get(span.media.kind, 0) + span.tokens
    return " and ".join(f"{count} are of kind {kind}" for kind, count in tokens.items())
