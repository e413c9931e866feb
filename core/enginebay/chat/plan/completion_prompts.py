"""What is specific to text completions: prompts as text or tokens, suffix, echo, `best_of`."""

from dataclasses import replace

from enginebay.chat.answer.compose_text import Echo
from enginebay.chat.plan.infill import infill_prompt
from enginebay.chat.plan.prompt_tokens import (
    PromptTokens,
    begins_with_bos,
    prompt_tokens,
    tokenize_text,
)
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.prompt_fields import TokenIds
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay.contract.sampling_params import SamplingParams
from enginebay.models.served import ServedModel


def check_completion(body: CompletionRequest, model: ServedModel) -> None:
    """Reject combinations that do not work together."""
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequestError("max_tokens can be 0 only with echo", param="max_tokens")
    if body.best_of is not None and body.best_of < body.n:
        raise InvalidRequestError("best_of is less than n", param="best_of")
    if body.best_of is not None and body.best_of > body.n:
        if body.stream:
            raise InvalidRequestError(
                "best_of cannot be streamed: the best choices are known only when all "
                "have finished",
                param="best_of",
            )
        _require(model, "logprobs", "best_of")
    if body.echo and body.logprobs is not None:
        if body.suffix:
            raise InvalidRequestError(
                "prompt logprobs cannot be echoed when a suffix is sent", param="echo"
            )
        _require(model, "prompt_logprobs", "echo")


def _require(model: ServedModel, needed: str, param: str) -> None:
    if needed in model.info.unsupported:
        raise UnsupportedParameterError(
            f"{param} is not supported: the engine of model {model.asked!r} returns no {needed}",
            param=param,
        )


def completion_sampling(body: CompletionRequest, asked: SamplingParams) -> SamplingParams:
    """What the engine computes beyond what the client sees."""
    logprobs, of_prompt = asked.logprobs, asked.prompt_logprobs
    if body.best_of is not None and body.best_of > body.n:
        logprobs = logprobs or 0
    if body.echo and body.logprobs is not None:
        of_prompt = max(of_prompt or 0, body.logprobs)
    max_tokens = 1 if asked.max_tokens == 0 else asked.max_tokens
    return replace(asked, logprobs=logprobs, prompt_logprobs=of_prompt, max_tokens=max_tokens)


async def completion_tokens(
    prompt: str | TokenIds, body: CompletionRequest, model: ServedModel, sampling: SamplingParams
) -> PromptTokens:
    """The tokens of a prompt, between which and a suffix the model fills in if there is one."""
    begins = body.memory or prompt
    written = isinstance(begins, str) and begins_with_bos(model, begins)
    add_bos = body.add_bos_token and not written
    memory: list[int] = []
    if body.memory:
        memory = await tokenize_text(model, body.memory, add_special_tokens=add_bos, param="memory")
        add_bos = False
    if body.suffix:
        prompt = await infill_prompt(prompt, body.suffix, model, add_special_tokens=add_bos)
    return await prompt_tokens(
        model,
        prompt,
        body,
        sampling,
        add_special_tokens=add_bos,
        param="prompt",
        memory=memory,
    )


def shown_prompt(prompt: str | TokenIds, body: CompletionRequest) -> str | TokenIds:
    """The prompt with all that is in front of it, for logs."""
    return (body.memory or "") + prompt if isinstance(prompt, str) else prompt


async def echo_of(
    prompt: str | TokenIds, body: CompletionRequest, tokens: PromptTokens, model: ServedModel
) -> Echo:
    """The prompt as it was sent; with memory, or if it was truncated, what the model got."""
    detokenize = model.backend.detokenize
    if tokens.cut or body.memory:
        prompt = tokens.token_ids
    text = prompt if isinstance(prompt, str) else await detokenize(prompt)
    first = tokens.token_ids[0]
    return Echo(text, first, await detokenize([first]))
