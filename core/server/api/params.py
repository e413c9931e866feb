"""What the generation routes take from a request before they run it."""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi import Request

from core.chat.answer.running import RunningRequest
from core.chat.plan.prompt_tokens import PromptTokens
from core.chat.schemas.generation_request import GenerationBody
from core.contract.chat import Chat
from core.contract.errors import UnsupportedParameterError
from core.contract.sampling_params import SamplingParams
from core.contract.types import GenerationRequest
from core.models.entry import LoadedModel
from core.server.api.served import running_request

logger = logging.getLogger(__name__)

UNSUPPORTED_HEADER = "X-Unsupported-Params"
CLAMPED_HEADER = "X-Clamped-Params"
TRUNCATED_HEADER = "X-Truncated-Prompt-Tokens"

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


def generation_requests(
    prompts: Sequence[Sequence[int]],
    body: GenerationBody,
    model: LoadedModel,
    sampling: SamplingParams,
    running: RunningRequest,
    *,
    n: int | None = None,
    chat: Chat | None = None,
) -> list[GenerationRequest]:
    """One engine request a prompt, for `n` choices, or as many as the body says.

    With a `chat`, the prompt is empty. Its id is unique even when clients reuse theirs.
    """
    priority = running.priority(body.priority)
    return [
        GenerationRequest(
            request_id=f"{running.answer_id}-{position}-{secrets.token_hex(4)}",
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
    running = running_request(http)
    return running.key.max_tokens if running.key else None
