"""`POST /v1/chat/completions`."""

import asyncio
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request, Response

from core.chat.answer.compose_chat import ChatComposer
from core.chat.answer.composer import Head
from core.chat.answer.generation import Generation
from core.chat.answer.logprobs import LogprobForm
from core.chat.answer.recipe import CollectorRecipe
from core.chat.plan.chat_constraint import ChatConstraint, chat_constraint
from core.chat.plan.continued import continued
from core.chat.plan.messages_passthrough import ignored_unrendered, unrendered_chat
from core.chat.plan.params import overridden, sampling_params, unsupported
from core.chat.plan.prompt import Prompt, chat_prompt
from core.chat.plan.prompt_tokens import PromptTokens, prompt_tokens
from core.chat.plan.reasoning import ignored_budget, is_merged, reasoning_fields, with_budget
from core.chat.plan.tool_choice import argument_schemas, call_rules
from core.chat.schemas.chat_answer import ChatCompletion
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.contract.errors import InvalidRequestError
from core.contract.sampling_params import SamplingParams
from core.contract.types import GenerationRequest
from core.models.entry import LoadedModel
from core.server.api.capturing import begin_capture
from core.server.api.params import (
    checked,
    clamped_to,
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
from core.server.api.served import generating_model, model_counts, running_request
from core.server.http.respond import respond

router = APIRouter(tags=["chat"])


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What a chat request comes to, before it is tokenized and run."""

    body: ChatCompletionRequest
    model: LoadedModel
    sampling: SamplingParams
    prompt: Prompt
    constraint: ChatConstraint
    headers: dict[str, str]
    ignored: tuple[str, ...]

    @property
    def starts_in_reasoning(self) -> bool:
        """Whether the prompt ends inside reasoning, which the answer then goes on with."""
        return bool(self.model.reasoning and self.model.reasoning.starts_inside(self.prompt.text))

    async def tokenize(self) -> PromptTokens:
        """The prompt's tokens; `ContextLengthExceededError` if they leave no room."""
        return await prompt_tokens(
            self.model,
            self.prompt.text,
            self.body,
            self.sampling,
            add_special_tokens=self.prompt.add_special_tokens,
            param="messages",
        )


async def plan_chat(body: ChatCompletionRequest, http: Request, model: LoadedModel) -> ChatPlan:
    """Everything that is decided before tokens are counted; refuses what cannot be done."""
    model = model.snapshot()
    sampling = sampling_params(body, model, logprobs=_top_logprobs(body))
    sampling = key_sampling(http, sampling)
    ignored = unsupported(body, sampling, model) + ignored_fields(http, body)
    if sampling.skip_special_tokens and (model.reasoning or (model.tools and body.offered_tools)):
        sampling = replace(sampling, skip_special_tokens=False)  # formats are made of them
        ignored.append("skip_special_tokens")
    allow_template = http.app.state.config.server.allow_request_template
    prompt = await chat_prompt(body, model, allow_template=allow_template)
    constraint = ChatConstraint()
    if body.asked_constraint() or body.tools or body.tool_choice:
        constraint = await checked(http, chat_constraint, body, model, prompt.text)
    ignored += [*prompt.ignored, *ignored_budget(body, model), *constraint.ignored]
    headers = unsupported_header(http, ignored)
    sampling = model.formats.turn_end.added_to(sampling)
    sampling = await with_budget(sampling, body, model, prompt.text)
    sampling = replace(sampling, constraint=constraint.grammar)
    return ChatPlan(body, model, sampling, prompt, constraint, headers, tuple(ignored))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a chat request asks of the engine, whichever way its model takes chats.

    `shown`: what the log gets of it. `constrained_by`: as `Generation` has it.
    """

    requests: list[GenerationRequest]
    recipe: CollectorRecipe
    headers: dict[str, str]
    shown: object
    constrained_by: str | None
    prompt_token_ids: list[list[int]] | None = None


@router.post("/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: ChatCompletionRequest, http: Request) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    base = request_id(http, body)
    id = f"chatcmpl-{base}"
    running = tracked(http, body, id)
    model = await generating_model(http, body.model)
    body = continued(overridden(body, model), model.config)
    ask = _ask_with_messages if model.info.chats else _ask_with_prompt
    asked = await ask(body, http, model)
    generation = Generation(
        http.app.state.plugins,
        model,
        asked.requests,
        asked.recipe,
        running,
        counts=model_counts(http, model),
        log_text=log_prompts(http, id, [asked.shown]),
        constrained_by=asked.constrained_by,
        capture=begin_capture(http, body, model, asked.requests, asked.recipe, asked.shown),
    )
    role = _response_role(body)
    counts_tokens = body.continuous_usage and not model.info.chats
    composer = ChatComposer(
        Head(id, model.name, fingerprint(http, model)),
        generation.choices,
        continuous=generation.counter if counts_tokens else None,
        prompt_token_ids=asked.prompt_token_ids if body.return_token_ids else None,
        logprobs=body.logprobs,
        form=LogprobForm(as_ids=tokens_as_ids(http, body) and not model.info.chats),
        role=role,
        echoed=_echoed(body, role),
        old_names=body.functions is not None,
        reasoning_fields=reasoning_fields(body, model.config),
    )
    headers = {"X-Request-Id": base, **asked.headers}
    return await respond(http, body, generation, composer, headers)


async def _ask_with_prompt(body: ChatCompletionRequest, http: Request, model: LoadedModel) -> Asked:
    plan = await plan_chat(body, http, model)
    tokens = await plan.tokenize()
    return Asked(
        generation_requests([tokens.token_ids], body, model, plan.sampling, running_request(http)),
        _recipe(plan),
        {**plan.headers, **fitted(http, body, [tokens], model)},
        plan.prompt.text,
        plan.constraint.param,
        [tokens.token_ids],
    )


async def _ask_with_messages(
    body: ChatCompletionRequest, http: Request, model: LoadedModel
) -> Asked:
    sampling = sampling_params(body, model, logprobs=_top_logprobs(body))
    sampling = key_sampling(http, sampling)
    chat = await asyncio.to_thread(unrendered_chat, body, model)
    ignored = unsupported(body, sampling, model) + ignored_fields(http, body)
    headers = unsupported_header(http, ignored + ignored_unrendered(body, model))
    headers |= clamped_to(http, body, model, room=None)
    rules = call_rules(body)
    asked_form = body.asked_constraint()
    return Asked(
        generation_requests([()], body, model, sampling, running_request(http), chat=chat),
        CollectorRecipe(
            merge=is_merged(body, model.config),
            one_call=not rules.parallel,
            named_call=rules.named,
        ),
        headers,
        chat.messages,
        asked_form[0] if asked_form else None,
    )


def _response_role(body: ChatCompletionRequest) -> str:
    """Without a generation prompt the model goes on with the last message, in its role."""
    goes_on = body.continue_final_message or not body.add_generation_prompt
    return body.messages[-1].role if goes_on else "assistant"


def _echoed(body: ChatCompletionRequest, role: str) -> str:
    """What `echo` puts in front of the answer: the last message, if it is of the answer's role."""
    last = body.messages[-1]
    if not body.echo or last.role != role or last.content is None:
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(part.text or "" for part in last.content)


def _recipe(plan: ChatPlan) -> CollectorRecipe:
    """What the collector of each choice is made of."""
    body, model, form = plan.body, plan.model, plan.constraint.form
    offered = model.tools is not None and bool(body.offered_tools)
    rules = call_rules(body)
    return CollectorRecipe(
        reasoning=model.reasoning_name if model.reasoning else None,
        tools=model.tools_name if offered else None,
        schemas=argument_schemas(body),
        starts_in_reasoning=plan.starts_in_reasoning,
        tools_in_reasoning=model.config.tools_in_reasoning and form is None,
        form=form,
        trim=offered or form is None,
        merge=is_merged(body, model.config),
        one_call=not rules.parallel,
        named_call=rules.named,
    )


def _top_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None
