"""Prompt tokens: tokenized, truncated if the request allows it, and checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.contract.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from enginebay.contract.media import MediaSpan
from enginebay.contract.sampling_params import SamplingParams
from enginebay.models.served import ServedModel

CONTEXTS_READ = 8
"""A text that need not fit may be this many times the context length: one to be cut, or counted."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt, without the `cut` ones truncated at its beginning.

    `media`: which of them stand for items.
    """

    token_ids: list[int]
    cut: int = 0
    media: tuple[MediaSpan, ...] = ()


async def prompt_tokens(
    model: ServedModel,
    prompt: str | list[int],
    body: GenerationBody,
    sampling: SamplingParams,
    *,
    add_special_tokens: bool,
    param: str,
    memory: Sequence[int] = (),
) -> PromptTokens:
    """A prompt's tokens: the last ones with `truncate_prompt_tokens`, else an error if too many.

    `memory`: what is in front of them, and is never truncated.
    """
    keep = kept_tokens(body, model, sampling)
    if memory and keep is not None:
        keep -= len(memory)
        if keep < 1:
            raise InvalidRequestError(
                f"memory has {len(memory)} tokens, which leaves none for the prompt", param="memory"
            )
    if isinstance(prompt, str):
        contexts = 1 if keep is None else CONTEXTS_READ
        token_ids = await tokenize_text(
            model, prompt, add_special_tokens=add_special_tokens, param=param, contexts=contexts
        )
    else:
        token_ids = prompt
    cut = 0 if keep is None else max(0, len(token_ids) - keep)
    token_ids = [*memory, *token_ids[cut:]]
    check_prompt(model, token_ids, param)
    return PromptTokens(token_ids, cut)


def kept_tokens(body: GenerationBody, model: ServedModel, sampling: SamplingParams) -> int | None:
    """How many trailing tokens of its prompts a request keeps at most; None: all.

    -1 is as many as fit into the context, or `truncation_length` if that is less, beside the
    answer: beside `max_tokens`, or a quarter of the context if the request does not say.
    """
    if body.truncate_prompt_tokens != -1:
        return body.truncate_prompt_tokens
    length = model.info.context_length
    if 0 < (body.truncation_length or 0) < length:
        length = body.truncation_length or 0
    answer = length // 4 if sampling.max_tokens is None else sampling.max_tokens
    return max(1, length - max(1, answer))


def exceeds_window(body: GenerationBody, prompts: Iterable[PromptTokens]) -> bool:
    """Whether a prompt and its answer take more tokens than the request's `truncation_length`.

    Clients send it with prompts that they have already shortened; 0 and less mean nothing.
    """
    window = body.truncation_length or 0
    longest = max(len(prompt.token_ids) for prompt in prompts)
    return 0 < window < longest + (body.max_tokens or 0)


async def tokenize_text(
    model: ServedModel,
    text: str,
    *,
    add_special_tokens: bool,
    param: str,
    contexts: int = 1,
) -> list[int]:
    """Token ids of a text; an error if they certainly exceed this many contexts."""
    check_text(model, text, param, contexts=contexts)
    return await model.backend.tokenize(text, add_special_tokens=add_special_tokens)


async def plain_tokens(
    model: ServedModel,
    text: str,
    *,
    param: str,
    contexts: int = 1,
    add_special_tokens: bool = False,
) -> list[int] | None:
    """The same, with nothing in it read as a special token; None if the engine cannot do that."""
    check_text(model, text, param, contexts=contexts)
    try:
        return await model.backend.tokenize_plain(text, add_special_tokens=add_special_tokens)
    except UnsupportedParameterError:
        return None


def check_text(model: ServedModel, text: str, param: str, *, contexts: int = 1) -> None:
    """Raise unless a text can be tokenized and may fit into this many contexts."""
    length = model.info.context_length
    if len(text) > contexts * length * model.info.longest_token:
        at_least = -(-len(text) // model.info.longest_token)
        raise too_long(model, at_least, param, at_least=True)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the prompt contains a lone surrogate", param=param) from error


def begins_with_bos(model: ServedModel, text: str) -> bool:
    """Whether a BOS is written at the beginning of a text, so that the tokenizer is to add none."""
    bos = model.info.special_tokens.get("bos_token")
    return bool(bos) and text.startswith(bos or "")


def check_prompt(
    model: ServedModel, token_ids: Sequence[int], param: str, *, room: int = 1
) -> None:
    """Raise unless the engine can take these prompt tokens."""
    if not token_ids:
        raise InvalidRequestError("the prompt is empty", param=param)
    if len(token_ids) + room > model.info.context_length:
        raise too_long(model, len(token_ids), param, room=room)
    check_vocabulary(model, token_ids, param)


def check_vocabulary(model: ServedModel, token_ids: Sequence[int], param: str) -> None:
    """Raise unless the model has these tokens."""
    worst = max(token_ids, default=0)
    if worst >= model.info.vocab_size:
        raise InvalidRequestError(
            f"token id {worst} is not in the vocabulary (0 to {model.info.vocab_size - 1})",
            param=param,
        )


def too_long(
    model: ServedModel, tokens: int, param: str, *, room: int = 0, at_least: bool = False
) -> ContextLengthExceededError:
    """The error OpenAI gives for a prompt that does not fit, which client libraries recognise."""
    length = model.info.context_length
    count = f"at least {tokens}" if at_least else f"{tokens}"
    error = ContextLengthExceededError(
        f"This model's maximum context length is {length} tokens. However, your prompt "
        f"has {count} tokens. Please shorten it.",
        param=param,
    )
    error.tokens, error.maximum = tokens, length - room
    return error
