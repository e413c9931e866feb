"""`POST /v1/completions`."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from core.chat.answer.compose_text import Echo, Shown, TextComposer
from core.chat.answer.composer import Head
from core.chat.answer.generation import Generation
from core.chat.answer.logprobs import LogprobForm
from core.chat.answer.recipe import CollectorRecipe
from core.chat.plan.content_grammar import content_grammar
from core.chat.plan.infill import infill_prompt
from core.chat.plan.params import overridden, sampling_params, unsupported
from core.chat.plan.prompt_tokens import PromptTokens, begins_with_bos, prompt_tokens
from core.chat.schemas.completion_bodies import Completion, CompletionRequest
from core.chat.schemas.prompt_fields import TokenIds, listed
from core.contract.errors import InvalidRequestError, UnsupportedParameterError
from core.contract.sampling_params import SamplingParams
from core.models.entry import LoadedModel
from core.server.api.capturing import begin_capture
from core.server.api.params import (
    checked,
    fingerprint,
    fitted,
    generation_requests,
    ignored_fields,
    key_sampling,
    log_prompts,
    request_id,
    tokens_as_ids,
    tracked,
    unsupported_header,
)
from core.server.api.served import model_counts, prompted_model
from core.server.http.respond import respond

router = APIRouter(tags=["completions"])


@router.post("/completions", response_model=Completion)
async def create_completion(body: CompletionRequest, http: Request) -> Response:
    """Continue one prompt or several, as text or token ids, whole or as server-sent events."""
    base = request_id(http, body)
    id = f"cmpl-{base}"
    running = tracked(http, body, id)
    model = await prompted_model(http, body.model)
    body = overridden(body, model)
    _check(body, model)
    asked = key_sampling(http, sampling_params(body, model, logprobs=body.logprobs))
    ignored = unsupported(body, asked, model) + ignored_fields(http, body)
    headers = unsupported_header(http, ignored)
    sampling = _sampling(body, asked)
    asked_constraint = body.asked_constraint()
    if asked_constraint:
        constraint = await checked(http, content_grammar, body, model)
        sampling = replace(sampling, constraint=constraint)
    texts: Sequence[str | TokenIds] = listed(body.prompt, "prompt")
    prompts = [await _prompt_tokens(text, body, model, sampling) for text in texts]
    echoes = []
    if body.echo:
        for text, tokens in zip(texts, prompts, strict=True):
            echoes.append(await _echo(text, tokens, model))
    headers = {"X-Request-Id": base, **headers, **fitted(http, body, prompts, model)}
    each = body.best_of or body.n
    token_ids = [prompt.token_ids for prompt in prompts]
    requests = generation_requests(token_ids, body, model, sampling, running, n=each)
    recipe = CollectorRecipe()
    generation = Generation(
        http.app.state.plugins,
        model,
        requests,
        recipe,
        running,
        counts=model_counts(http, model),
        prompt_only=body.max_tokens == 0,
        log_text=log_prompts(http, id, texts),
        constrained_by=asked_constraint[0] if asked_constraint else None,
        capture=begin_capture(http, body, model, requests, recipe, texts),
    )
    composer = TextComposer(
        Head(id, model.name, fingerprint(http, model)),
        len(prompts),
        generation.choices,
        continuous=generation.counter if body.continuous_usage else None,
        prompt_token_ids=token_ids if body.return_token_ids else None,
        shown=Shown(
            logprobs=body.logprobs is not None,
            prompt_logprobs=body.prompt_logprobs is not None,
            best=body.n,
        ),
        form=LogprobForm(as_ids=tokens_as_ids(http, body)),
        echoes=echoes,
    )
    return await respond(http, body, generation, composer, headers)


def _check(body: CompletionRequest, model: LoadedModel) -> None:
    """Refuse what does not go together."""
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequestError("max_tokens can be 0 only with echo", param="max_tokens")
    if body.best_of is not None and body.best_of < body.n:
        raise InvalidRequestError("best_of is less than n", param="best_of")
    if body.best_of is not None and body.best_of > body.n:
        if body.stream:
            raise InvalidRequestError(
                "which choices are the best is known when all have ended: best_of cannot be "
                "streamed",
                param="best_of",
            )
        _require(model, "logprobs", "best_of")
    if body.echo and body.logprobs is not None:
        if body.suffix:
            raise InvalidRequestError(
                "with a suffix there are no logprobs of the prompt to echo", param="echo"
            )
        _require(model, "prompt_logprobs", "echo")


def _require(model: LoadedModel, needed: str, param: str) -> None:
    if needed in model.info.unsupported:
        raise UnsupportedParameterError(
            f"the engine of model {model.name!r} gives no {needed}, which {param} needs",
            param=param,
        )


def _sampling(body: CompletionRequest, asked: SamplingParams) -> SamplingParams:
    """What the engine is asked for, beyond what the client is to see."""
    logprobs, of_prompt = asked.logprobs, asked.prompt_logprobs
    if body.best_of is not None and body.best_of > body.n:
        logprobs = logprobs or 0
    if body.echo and body.logprobs is not None:
        of_prompt = max(of_prompt or 0, body.logprobs)
    max_tokens = 1 if asked.max_tokens == 0 else asked.max_tokens
    return replace(asked, logprobs=logprobs, prompt_logprobs=of_prompt, max_tokens=max_tokens)


async def _prompt_tokens(
    prompt: str | TokenIds, body: CompletionRequest, model: LoadedModel, sampling: SamplingParams
) -> PromptTokens:
    written = isinstance(prompt, str) and begins_with_bos(model, prompt)
    add_bos = body.add_bos_token and not written
    if body.suffix:
        prompt = await infill_prompt(prompt, body.suffix, model, add_special_tokens=add_bos)
    return await prompt_tokens(
        model, prompt, body, sampling, add_special_tokens=add_bos, param="prompt"
    )


async def _echo(prompt: str | TokenIds, tokens: PromptTokens, model: LoadedModel) -> Echo:
    """The prompt as it was sent; of a truncated one, what is left."""
    detokenize = model.backend.detokenize
    if tokens.cut:
        prompt = tokens.token_ids
    text = prompt if isinstance(prompt, str) else await detokenize(prompt)
    first = tokens.token_ids[0]
    return Echo(text, first, await detokenize([first]))
