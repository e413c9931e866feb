"""Plans requests: everything that is decided before the engine runs.

Chats, completions and the explain route are planned here and nowhere else. Nothing of HTTP is
known here.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar

from core.chat.answer.recipe import CollectorRecipe
from core.chat.plan.chat_constraint import ChatConstraint, chat_constraint
from core.chat.plan.completion_prompts import (
    check_completion,
    completion_sampling,
    completion_tokens,
    echo_of,
)
from core.chat.plan.content_grammar import content_grammar
from core.chat.plan.messages_passthrough import ignored_unrendered, unrendered_chat
from core.chat.plan.params import PlannedParams, overridden, planned_params, unsupported
from core.chat.plan.prompt import Prompt, chat_prompt, continued
from core.chat.plan.prompt_tokens import PromptTokens, prompt_tokens
from core.chat.plan.reasoning import (
    ignored_budget,
    is_merged,
    planned_budget,
    starts_in_reasoning,
)
from core.chat.plan.request_plan import RequestPlan
from core.chat.plan.strictness import accept_clamped, accept_ignored
from core.chat.plan.tool_choice import argument_schemas, call_rules
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.chat.schemas.completion_bodies import CompletionRequest
from core.chat.schemas.generation_request import GenerationBody
from core.chat.schemas.prompt_fields import TokenIds, listed
from core.config.schema import ServerConfig
from core.contract.errors import InvalidRequestError
from core.models.served import ServedModel

_CHECK_THREADS = 2

_Asked = ParamSpec("_Asked")
_Checked = TypeVar("_Checked")


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat request whose prompt has been rendered but not tokenized yet."""

    body: ChatCompletionRequest
    model: ServedModel
    params: PlannedParams
    prompt: Prompt
    constraint: ChatConstraint
    ignored: tuple[str, ...]

    @property
    def starts_in_reasoning(self) -> bool:
        """Whether the prompt ends inside reasoning, which the answer then continues."""
        return starts_in_reasoning(self.body, self.model.reasoning, self.prompt.text)

    async def tokenize(self) -> PromptTokens:
        """The prompt's tokens; `ContextLengthExceededError` if they leave no room."""
        return await prompt_tokens(
            self.model,
            self.prompt.text,
            self.body,
            self.params.params,
            add_special_tokens=self.prompt.add_special_tokens,
            param="messages",
        )


class Planner:
    """Plans the requests of one server; used on its event loop.

    `most_tokens` is the most tokens per answer that the API key allows; None: unlimited.
    """

    def __init__(self, server: ServerConfig) -> None:
        self._server = server
        # Threads of their own: however long schemas take, prompts are built meanwhile.
        self._threads = ThreadPoolExecutor(_CHECK_THREADS, "enginebay-checks")

    def close(self) -> None:
        """Stop checking constraints."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def chat(
        self, sent: ChatCompletionRequest, model: ServedModel, most_tokens: int | None
    ) -> RequestPlan[ChatCompletionRequest]:
        """The plan of a `/v1/chat/completions` request; rejects what is not supported."""
        if model.info.chats:
            return await self._messages(sent, model, most_tokens)
        chat = await self.render(sent, model, most_tokens)
        tokens = await chat.tokenize()
        return RequestPlan(
            body=chat.body,
            model=model,
            params=chat.params,
            prompts=[tokens.token_ids],
            shown=[chat.prompt.text],
            choices=chat.body.n,
            recipe=_recipe(chat),
            constrained_by=chat.constraint.param,
            ignored=chat.ignored,
            clamped=self.clamped(chat.body, [tokens], model, most_tokens),
            cut=tokens.cut,
        )

    async def render(
        self, sent: ChatCompletionRequest, model: ServedModel, most_tokens: int | None
    ) -> RenderedChat:
        """Plan a chat up to its prompt; rejects what is not supported, except too long prompts."""
        body = continued(overridden(sent, model), model.config)
        planned = planned_params(sent, body, model, logprobs=_top_logprobs(body))
        planned = _limited(planned, most_tokens)
        ignored = self._ignored(body, planned, model)
        if planned.params.skip_special_tokens and (
            model.reasoning or (model.tools and body.offered_tools)
        ):  # formats are made of them
            planned = replace(planned, params=replace(planned.params, skip_special_tokens=False))
            ignored.append("skip_special_tokens")
        allow_template = self._server.allow_request_template
        prompt = await chat_prompt(body, model, allow_template=allow_template)
        constraint = ChatConstraint()
        if body.asked_constraint() or body.tools or body.tool_choice:
            constraint = await self._check(chat_constraint, body, model, prompt.text)
        ignored += [*prompt.ignored, *ignored_budget(body, model), *constraint.ignored]
        accept_ignored(ignored, self._server)
        planned = planned.joined("template", model.formats.turn_end.added_to(planned.params))
        planned = await planned_budget(planned, body, model, prompt.text)
        planned = planned.set("request", constraint=constraint.grammar)
        return RenderedChat(body, model, planned, prompt, constraint, tuple(ignored))

    async def completion(
        self, sent: CompletionRequest, model: ServedModel, most_tokens: int | None
    ) -> RequestPlan[CompletionRequest]:
        """The plan of a `/v1/completions` request; rejects what is not supported."""
        body = overridden(sent, model)
        check_completion(body, model)
        planned = planned_params(sent, body, model, logprobs=body.logprobs)
        planned = _limited(planned, most_tokens)
        ignored = self._ignored(body, planned, model)
        accept_ignored(ignored, self._server)
        planned = planned.joined("request", completion_sampling(body, planned.params))
        asked = body.asked_constraint()
        if asked:
            grammar = await self._check(content_grammar, body, model)
            planned = planned.set("request", constraint=grammar)
        texts: Sequence[str | TokenIds] = listed(body.prompt, "prompt")
        tokens = [await completion_tokens(text, body, model, planned.params) for text in texts]
        pairs = zip(texts, tokens, strict=True)
        return RequestPlan(
            body=body,
            model=model,
            params=planned,
            prompts=[prompt.token_ids for prompt in tokens],
            shown=texts,
            choices=body.best_of or body.n,
            recipe=CollectorRecipe(),
            constrained_by=asked[0] if asked else None,
            ignored=tuple(ignored),
            clamped=self.clamped(body, tokens, model, most_tokens),
            cut=sum(prompt.cut for prompt in tokens),
            prompt_only=body.max_tokens == 0,
            echoes=[await echo_of(*pair, model) for pair in pairs] if body.echo else (),
        )

    def clamped(
        self,
        body: GenerationBody,
        prompts: Sequence[PromptTokens] | None,
        model: ServedModel,
        most_tokens: int | None,
    ) -> dict[str, int]:
        """The maximum length of the answer, if less than requested.

        `prompts`: None where the context length is not known.
        """
        room = None
        if prompts is not None:
            room = model.info.context_length - max(len(prompt.token_ids) for prompt in prompts)
        limits = [limit for limit in (room, most_tokens) if limit is not None]
        asked = body.max_tokens or 0
        too_many = bool(limits) and asked > min(limits)
        if not too_many or model.overrides.gives("max_tokens", asked):
            return {}
        clamped = {"max_tokens": min(limits)}
        accept_clamped(clamped, self._server)
        return clamped

    async def _messages(
        self, sent: ChatCompletionRequest, model: ServedModel, most_tokens: int | None
    ) -> RequestPlan[ChatCompletionRequest]:
        """Plans a chat for models that take messages."""
        body = continued(overridden(sent, model), model.config)
        planned = planned_params(sent, body, model, logprobs=_top_logprobs(body))
        planned = _limited(planned, most_tokens)
        chat = await asyncio.to_thread(unrendered_chat, body, model)
        ignored = self._ignored(body, planned, model) + ignored_unrendered(body, model)
        accept_ignored(ignored, self._server)
        rules = call_rules(body)
        asked = body.asked_constraint()
        return RequestPlan(
            body=body,
            model=model,
            params=planned,
            prompts=[[]],
            shown=[chat.messages],
            choices=body.n,
            recipe=CollectorRecipe(
                merge=is_merged(body, model.config),
                one_call=not rules.parallel,
                named_call=rules.named,
            ),
            constrained_by=asked[0] if asked else None,
            ignored=tuple(ignored),
            clamped=self.clamped(body, None, model, most_tokens),
            chat=chat,
        )

    def _ignored(
        self, body: GenerationBody, planned: PlannedParams, model: ServedModel
    ) -> list[str]:
        names = unsupported(body, planned.params, model)
        if body.request_id is not None and self._server.request_id_from != "request_id":
            names.append("request_id")
        return names

    async def _check(
        self,
        check: Callable[_Asked, _Checked],
        *args: _Asked.args,
        **kwargs: _Asked.kwargs,
    ) -> _Checked:
        """What the check of a constraint returns, made on one of a few threads: it may be slow."""
        call = partial(check, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _limited(planned: PlannedParams, most_tokens: int | None) -> PlannedParams:
    """The same params, with `max_tokens` limited to what the API key allows."""
    asked = planned.params.max_tokens
    if most_tokens is None or (asked is not None and asked <= most_tokens):
        return planned
    return planned.set("key", max_tokens=most_tokens)


def _recipe(chat: RenderedChat) -> CollectorRecipe:
    """How the text of each choice is parsed."""
    body, model, form = chat.body, chat.model, chat.constraint.form
    offered = model.tools is not None and bool(body.offered_tools)
    rules = call_rules(body)
    return CollectorRecipe(
        reasoning=model.reasoning_name if model.reasoning else None,
        tools=model.tools_name if offered else None,
        answer=None if offered or form else model.tools_name,
        schemas=argument_schemas(body),
        starts_in_reasoning=chat.starts_in_reasoning,
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
