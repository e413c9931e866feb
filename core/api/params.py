"""What the generation routes take from a request before they run it."""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi import Request

from core.access.keys import Key
from core.access.models import permitted_name
from core.api.respond import or_client_leaves
from core.conversation import Chat
from core.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from core.models import LoadedModel, Models
from core.observe.counts import ModelCounts
from core.observe.metrics import Metrics
from core.running import RunningRequest
from core.sampling_params import SamplingParams
from core.schemas.common import GenerationBody
from core.types import GenerationRequest

logger = logging.getLogger(__name__)

UNSUPPORTED_HEADER = "X-Unsupported-Params"
CLAMPED_HEADER = "X-Clamped-Params"
TRUNCATED_HEADER = "X-Truncated-Prompt-Tokens"

_CONTEXTS_TRUNCATED = 8
"""A prompt that is to be truncated may be so many times as long as the context."""

_Asked = ParamSpec("_Asked")
_Checked = TypeVar("_Checked")

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def request_id(http: Request, body: GenerationBody | None = None) -> str:
    """The client's `X-Request-Id` if it is a plain short one, else a UUID.

    Where the config says so, the body's `request_id` or `user` come first.
    """
    source = http.app.state.config.server.request_id_from
    in_body = getattr(body, source) if body and source != "header" else None
    for sent in (in_body, http.headers.get("x-request-id")):
        if sent and _REQUEST_ID.fullmatch(sent):
            running_request(http).id = str(sent)
            break
    return running_request(http).id


def running_request(http: Request) -> RunningRequest:
    """This very request among those that are being answered."""
    running: RunningRequest = http.state.running
    return running


def tracked(http: Request, body: GenerationBody, answer_id: str) -> RunningRequest:
    """This very request, with what others may know it by while it runs."""
    running = running_request(http)
    running.id, running.answer_id = request_id(http, body), answer_id
    running.stream = bool(body.stream)
    return running


def fingerprint(http: Request, model: LoadedModel) -> str:
    """`system_fingerprint`: the same as long as the same software answers from the same model."""
    config = model.config
    known = (http.app.version, config.backend, config.path, config.options, model.applied_adapter)
    return f"fp_{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}"


def tokens_as_ids(http: Request, body: GenerationBody) -> bool:
    """Whether tokens beside logprobs are written as ids: by the request, else by the config."""
    asked = body.return_tokens_as_token_ids
    return bool(http.app.state.config.server.tokens_as_ids if asked is None else asked)


def log_prompts(http: Request, id: str, prompts: Sequence[object]) -> bool:
    """Log what is asked, if the config wants that, and say whether it does."""
    wanted: bool = http.app.state.config.server.log_prompts
    if wanted:
        for prompt in prompts:
            logger.info("%s asks: %r", id, prompt)
    return wanted


async def served_model(http: Request, name: str | None) -> LoadedModel:
    """The model a request means, ready to answer, and kept so until the response has ended."""
    models: Models = http.app.state.models
    running = running_request(http)
    permitted = permitted_name(running.key, name, models)
    running.asks, running.model, running.loading = True, permitted, True
    model = await or_client_leaves(http, _held(running, models, permitted))
    running.model, running.loading = model.name, False
    return model


async def _held(running: RunningRequest, models: Models, name: str | None) -> LoadedModel:
    with running.interruptible():
        return await running.hold(models.lease(name))


async def configured_model(http: Request, name: str | None) -> LoadedModel:
    """The model of the config that a request means, loaded; of an adapter the one it is for.

    It is not loaded for the request, but kept until the response has ended.
    """
    models: Models = http.app.state.models
    running: RunningRequest = http.state.running
    models.get(permitted_name(running.key, name, models))
    served = await served_model(http, name)
    return models.find(served.config.name)


def model_counts(http: Request, model: LoadedModel) -> ModelCounts:
    """Where what a model does is counted."""
    metrics: Metrics = http.app.state.metrics
    return metrics.of(model)


async def generating_model(http: Request, name: str | None) -> LoadedModel:
    """The same; an error if it generates no text."""
    model = await served_model(http, name)
    if not model.info.generates:
        raise InvalidRequestError(
            f"model {model.name!r} makes embeddings and generates no text: use /v1/embeddings",
            param="model",
        )
    return model


async def prompted_model(http: Request, name: str | None) -> LoadedModel:
    """The same; an error if it takes the messages of chats only."""
    model = await generating_model(http, name)
    _require_tokens(model)
    return model


async def tokenized_model(http: Request, name: str | None) -> LoadedModel:
    """The model a request means, be it for embeddings; an error if its tokens are not known."""
    model = await served_model(http, name)
    _require_tokens(model)
    return model


def _require_tokens(model: LoadedModel) -> None:
    if model.info.chats:
        raise UnsupportedParameterError(
            f"model {model.name!r} takes the messages of chats, and its prompts are rendered "
            "elsewhere: only /v1/chat/completions can be asked for it",
            param="model",
        )


def generation_requests(
    prompts: Sequence[Sequence[int]],
    body: GenerationBody,
    model: LoadedModel,
    sampling: SamplingParams,
    id: str,
    *,
    n: int | None = None,
    chat: Chat | None = None,
    key: Key | None = None,
) -> list[GenerationRequest]:
    """One engine request a prompt, for `n` choices, or as many as the body says.

    With a `chat`, the prompt is empty. The request's `key` may say its priority.

    Its id is unique even when clients reuse theirs.
    """
    priority = body.priority if key is None or key.priority is None else key.priority
    return [
        GenerationRequest(
            request_id=f"{id}-{position}-{secrets.token_hex(4)}",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            n=n or body.n,
            adapter=model.adapter,
            priority=priority,
            cache_salt=body.cache_salt,
            chat=chat,
        )
        for position, prompt in enumerate(prompts)
    ]


def ignored_fields(http: Request, body: GenerationBody) -> list[str]:
    """Names of known fields that the config keeps from having an effect."""
    taken = http.app.state.config.server.request_id_from == "request_id"
    return ["request_id"] if body.request_id is not None and not taken else []


async def checked(
    http: Request,
    check: Callable[_Asked, _Checked],
    *args: _Asked.args,
    **kwargs: _Asked.kwargs,
) -> _Checked:
    """What the check of a constraint returns, made on one of a few threads: it may take long."""
    call = partial(check, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(http.app.state.checks, call)


def unsupported_header(http: Request, names: Sequence[str]) -> dict[str, str]:
    """The header that names what cannot be honoured, or an error if the config says so."""
    if not names:
        return {}
    if http.app.state.config.server.strict_params:
        raise UnsupportedParameterError(
            f"unsupported parameters: {', '.join(names)}", param=names[0]
        )
    logger.info("unsupported parameters: %.1000s", ", ".join(names))
    printable = [name for name in names if name.isascii() and name.isprintable()]
    return {UNSUPPORTED_HEADER: ", ".join(printable)[:4000]}


def clamped_header(http: Request, clamped: Mapping[str, int]) -> dict[str, str]:
    """The header that says what a param was made smaller to, or an error if the config says so."""
    if not clamped:
        return {}
    text = ", ".join(f"{name}={value}" for name, value in clamped.items())
    if http.app.state.config.server.strict_params:
        raise UnsupportedParameterError(
            f"more than the context or the API key has room for; at most: {text}",
            param=next(iter(clamped)),
        )
    logger.info("clamped parameters: %s", text)
    return {CLAMPED_HEADER: text}


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt, without `cut` ones at its beginning that the request gave up."""

    token_ids: list[int]
    cut: int = 0


async def prompt_tokens(
    model: LoadedModel,
    prompt: str | list[int],
    body: GenerationBody,
    sampling: SamplingParams,
    *,
    add_special_tokens: bool,
    param: str,
) -> PromptTokens:
    """A prompt's tokens: the last ones with `truncate_prompt_tokens`, else an error if too many."""
    keep = kept_tokens(body, model, sampling)
    if isinstance(prompt, str):
        contexts = 1 if keep is None else _CONTEXTS_TRUNCATED
        token_ids = await tokenize_text(
            model, prompt, add_special_tokens=add_special_tokens, param=param, contexts=contexts
        )
    else:
        token_ids = prompt
    cut = 0 if keep is None else max(0, len(token_ids) - keep)
    check_prompt(model, token_ids[cut:], param)
    return PromptTokens(token_ids[cut:], cut)


def kept_tokens(body: GenerationBody, model: LoadedModel, sampling: SamplingParams) -> int | None:
    """How many tokens of its prompts' ends a request wants to keep at most; None: all.

    -1 is as many as the context has room for beside the answer: beside `max_tokens`, or a quarter
    of the context if the request does not say.
    """
    if body.truncate_prompt_tokens != -1:
        return body.truncate_prompt_tokens
    length = model.info.context_length
    answer = length // 4 if sampling.max_tokens is None else sampling.max_tokens
    return max(1, length - max(1, answer))


def fitted(
    http: Request, body: GenerationBody, prompts: Sequence[PromptTokens], model: LoadedModel
) -> dict[str, str]:
    """Headers that say what had to give way to the context's length, or the key's limit."""
    room = model.info.context_length - max(len(prompt.token_ids) for prompt in prompts)
    headers = clamped_to(http, body, model, room)
    if cut := sum(prompt.cut for prompt in prompts):
        logger.info("%d tokens cut off prompts", cut)
        headers[TRUNCATED_HEADER] = str(cut)
    return headers


def clamped_to(
    http: Request, body: GenerationBody, model: LoadedModel, room: int | None
) -> dict[str, str]:
    """The header that says how long the answer can get if that is less than was asked for.

    `room`: what the context has for it, None where that is not known.
    """
    limits = [limit for limit in (room, _most_tokens(http)) if limit is not None]
    asked = body.max_tokens or 0
    too_many = bool(limits) and asked > min(limits)
    if too_many and not model.overrides.gives("max_tokens", asked):
        return clamped_header(http, {"max_tokens": min(limits)})
    return {}


def key_sampling(http: Request, sampling: SamplingParams) -> SamplingParams:
    """The same params, for an answer that gets no longer than the request's key allows."""
    limit = _most_tokens(http)
    if limit is None or (sampling.max_tokens is not None and sampling.max_tokens <= limit):
        return sampling
    return replace(sampling, max_tokens=limit)


def _most_tokens(http: Request) -> int | None:
    running: RunningRequest = http.state.running
    return running.key.max_tokens if running.key else None


async def tokenize_prompt(
    model: LoadedModel, text: str, *, add_special_tokens: bool, param: str, room: int = 1
) -> list[int]:
    """Token ids of a prompt that leaves room for so many tokens of completion."""
    token_ids = await tokenize_text(model, text, add_special_tokens=add_special_tokens, param=param)
    check_prompt(model, token_ids, param, room=room)
    return token_ids


async def tokenize_text(
    model: LoadedModel,
    text: str,
    *,
    add_special_tokens: bool,
    param: str,
    contexts: int = 1,
    plain: bool = False,
) -> list[int]:
    """Token ids of a text, unless they are certain to be more than so many contexts have.

    `plain`: none of what it says is a special token (`Backend.tokenize_plain`).
    """
    length = model.info.context_length
    if len(text) > contexts * length * model.info.longest_token:
        at_least = -(-len(text) // model.info.longest_token)
        raise too_long(length, f"at least {at_least}", param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the prompt holds half a surrogate pair", param=param) from error
    tokenize = model.backend.tokenize_plain if plain else model.backend.tokenize
    return await tokenize(text, add_special_tokens=add_special_tokens)


def begins_with_bos(model: LoadedModel, text: str) -> bool:
    """Whether a BOS is written at the beginning of a text, so that the tokenizer is to add none."""
    bos = model.info.special_tokens.get("bos_token")
    return bool(bos) and text.startswith(bos or "")


def check_prompt(
    model: LoadedModel, token_ids: Sequence[int], param: str, *, room: int = 1
) -> None:
    """Raise unless the engine can take these prompt tokens."""
    if not token_ids:
        raise InvalidRequestError("the prompt is empty", param=param)
    if len(token_ids) + room > model.info.context_length:
        raise too_long(model.info.context_length, str(len(token_ids)), param)
    check_vocabulary(model, token_ids, param)


def check_vocabulary(model: LoadedModel, token_ids: Sequence[int], param: str) -> None:
    """Raise unless the model has these tokens."""
    worst = max(token_ids, default=0)
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
