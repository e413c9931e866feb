"""What the generation routes take from a request before they run it."""

import logging
import secrets
from collections.abc import Sequence
from uuid import uuid4

from fastapi import Request

from core.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from core.models import LoadedModel
from core.sampling import sampling_params, unsupported
from core.schemas.common import GenerationBody
from core.types import GenerationRequest, SamplingParams

logger = logging.getLogger(__name__)

UNSUPPORTED_HEADER = "X-Unsupported-Params"


def request_id(http: Request) -> str:
    """The client's `X-Request-Id` if it is a plain short one, else a new UUID."""
    sent = http.headers.get("x-request-id", "")
    return sent if sent.isascii() and sent.isprintable() and 0 < len(sent) <= 128 else uuid4().hex


def generating_model(http: Request, name: str | None) -> LoadedModel:
    """The model a request means, ready to answer; an error if it generates no text."""
    model: LoadedModel = http.app.state.models.get(name)
    if not model.info.generates:
        raise InvalidRequestError(
            f"model {model.name!r} makes embeddings and generates no text: use /v1/embeddings",
            param="model",
        )
    return model


def generation_requests(
    prompts: Sequence[Sequence[int]],
    body: GenerationBody,
    model: LoadedModel,
    sampling: SamplingParams,
    id: str,
) -> list[GenerationRequest]:
    """One engine request a prompt. Its id is unique even when clients reuse theirs."""
    return [
        GenerationRequest(
            request_id=f"{id}-{position}-{secrets.token_hex(4)}",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            n=body.n,
            adapter=model.adapter,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )
        for position, prompt in enumerate(prompts)
    ]


def choose_sampling(
    http: Request, body: GenerationBody, model: LoadedModel, *, logprobs: int | None
) -> tuple[SamplingParams, dict[str, str]]:
    """Sampling params, and the headers that name what cannot be honoured.

    With `strict_params` in the config that is an error instead.
    """
    params = sampling_params(body, model, logprobs=logprobs)
    return params, unsupported_header(http, unsupported(body, params, model))


def unsupported_header(http: Request, names: Sequence[str]) -> dict[str, str]:
    """The header that names what cannot be honoured, or an error if the config says so."""
    if not names:
        return {}
    if http.app.state.config.server.strict_params:
        raise UnsupportedParameterError(
            f"unsupported parameters: {', '.join(names)}", param=names[0]
        )
    logger.info("unsupported parameters: %s", ", ".join(names))
    printable = [name for name in names if name.isascii() and name.isprintable()]
    return {UNSUPPORTED_HEADER: ", ".join(printable)[:4000]}


async def tokenize_prompt(
    model: LoadedModel, text: str, *, add_special_tokens: bool, param: str, room: int = 1
) -> list[int]:
    """Token ids of a prompt that leaves room for so many tokens of completion."""
    length = model.info.context_length
    if len(text) > length * model.info.longest_token:
        at_least = -(-len(text) // model.info.longest_token)
        raise too_long(length, f"at least {at_least}", param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the prompt holds half a surrogate pair", param=param) from error
    token_ids = await model.backend.tokenize(text, add_special_tokens=add_special_tokens)
    check_prompt(model, token_ids, param, room=room)
    return token_ids


def check_prompt(
    model: LoadedModel, token_ids: Sequence[int], param: str, *, room: int = 1
) -> None:
    """Raise unless the engine can take these prompt tokens."""
    if not token_ids:
        raise InvalidRequestError("the prompt is empty", param=param)
    if len(token_ids) + room > model.info.context_length:
        raise too_long(model.info.context_length, str(len(token_ids)), param)
    worst = max(token_ids)
    if worst >= model.info.vocab_size:
        raise InvalidRequestError(
            f"token id {worst} is not in the vocabulary (0 to {model.info.vocab_size - 1})",
            param=param,
        )


def too_long(context_length: int, tokens: str, param: str) -> ContextLengthExceededError:
    """The error OpenAI gives for a prompt that does not fit, which client libraries recognise."""
    return ContextLengthExceededError(
        f"This model's maximum context length is {context_length} tokens. However, your prompt "
        f"has {tokens} tokens. Please shorten it.",
        param=param,
    )
