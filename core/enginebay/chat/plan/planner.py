"""Plans requests: everything that is decided before the engine runs.

Chats, completions and the explain route are planned here and nowhere else. Nothing of HTTP is
known here.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from enginebay.chat.answer.recipe import CollectorRecipe
from enginebay.chat.plan.chat_constraint import ChatConstraint, chat_constraint
from enginebay.chat.plan.completion_prompts import (
    check_completion,
    completion_sampling,
    completion_tokens,
    echo_of,
    shown_prompt,
)
from enginebay.chat.plan.content_grammar import content_grammar
from enginebay.chat.plan.length_limits import beyond, clamped
from enginebay.chat.plan.media_parts import media_parts
from enginebay.chat.plan.messages_passthrough import ignored_unrendered, unrendered_chat
from enginebay.chat.plan.overflow import FittingChat, drops_oldest, fitting_chat
from enginebay.chat.plan.params import (
    PlannedParams,
    overridden,
    planned_params,
    time_limit,
    unsupported,
)
from enginebay.chat.plan.prompt import Prompt, chat_prompt, continued
from enginebay.chat.plan.prompt_tokens import tokenize_text
from enginebay.chat.plan.reasoning import (
    ignored_budget,
    is_merged,
    planned_budget,
    starts_in_reasoning,
    thought_end,
)
from enginebay.chat.plan.rendered_chat import RenderedChat
from enginebay.chat.plan.request_media import RequestMedia, check_passed_on, request_media
from enginebay.chat.plan.request_plan import RequestPlan
from enginebay.chat.plan.stop_scope import stop_scope
from enginebay.chat.plan.strictness import accept_ignored
from enginebay.chat.plan.tool_choice import call_rules
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.chat.schemas.prompt_fields import TokenIds, listed
from enginebay.config.schema import Config
from enginebay.contract.errors import InvalidRequestError
from enginebay.media.load import MediaLoader
from enginebay.models.served import ServedModel
from enginebay.models.template.foreign_templates import ForeignTemplates
from enginebay.models.template.turn_end import TurnEnd

_CHECK_THREADS = 2

_Asked = ParamSpec("_Asked")
_Checked = TypeVar("_Checked")


class Planner:
    """Plans the requests of one server; used on its event loop.

    `most_tokens` is the most tokens per answer that the API key allows; None: unlimited.
    `request_id` is the request's id, which may be another than it asks for. `salt`: its effective
    cache salt.
    """

    def __init__(self, config: Config) -> None:
        server = self._server = config.server
        # Threads of their own: however long schemas take, prompts are built meanwhile.
        self._threads = ThreadPoolExecutor(_CHECK_THREADS, "enginebay-checks")
        self._templates = ForeignTemplates(processes=2) if server.allow_request_template else None
        self._media = MediaLoader(config.server.media_policy(config.base))

    def close(self) -> None:
        """Stop checking constraints and rendering templates of requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._media.close()
        if self._templates:
            self._templates.close()

    async def chat(
        self,
        sent: ChatCompletionRequest,
        model: ServedModel,
        most_tokens: int | None,
        request_id: str,
        salt: str | None,
    ) -> RequestPlan[ChatCompletionRequest]:
        """The plan of a `/v1/chat/completions` request; rejects what is not supported."""
        if model.info.chats:
            return await self._messages(sent, model, most_tokens, request_id)
        chat = await self.render(sent, model, most_tokens, request_id, salt)
        tokens = await chat.tokenize()
        return RequestPlan(
            body=chat.body,
            model=model,
            params=chat.params,
            prompts=[tokens.token_ids],
            shown=[chat.prompt.text],
            choices=chat.body.n,
            recipe=chat.recipe,
            constrained_by=chat.constraint.param,
            ignored=chat.ignored + beyond(chat.body, [tokens], self._server),
            clamped=clamped(chat.body, [tokens], model, most_tokens, self._server),
            cut=tokens.cut,
            dropped=chat.dropped,
            media=tokens.media,
            predicted=await _predicted(chat.body, model),
            time_limit=time_limit(chat.body, model),
            thought_end=chat.thought_end,
        )

    async def render(
        self,
        sent: ChatCompletionRequest,
        model: ServedModel,
        most_tokens: int | None,
        request_id: str,
        salt: str | None,
        *,
        fit: bool = True,
    ) -> RenderedChat:
        """Plan a chat up to its prompt; rejects what is not supported, except too long prompts.

        `fit`: leave out its oldest turns where the request or the config wants that.
        """
        body = continued(overridden(sent, model), model.config)
        logprobs = _top_logprobs(body)
        planned = planned_params(sent, body, model, most_tokens, logprobs=logprobs)
        ignored = self._ignored(sent, body, planned, model, request_id)
        if planned.params.prompt_logprobs is not None and any(media_parts(body.messages)):
            raise InvalidRequestError(
                "there are no logprobs of a prompt with media", param="prompt_logprobs"
            )
        fitting = await self._fitting(body, model, salt, planned if fit else None)
        body, prompt = fitting.body, fitting.prompt
        inside = starts_in_reasoning(body, model, prompt.text)
        constraint = ChatConstraint()
        if body.asked_constraint() or body.tools or body.tool_choice:
            constraint = await self._check(chat_constraint, body, model, inside=inside)
        ignored += [*prompt.ignored, *ignored_budget(body, model), *constraint.ignored]
        accept_ignored(ignored, self._server)
        stops = TurnEnd(prompt.template.template.stop_strings)  # of one that the request chose
        stopped = stops.added_to(model.formats.turn_end.added_to(planned.params))
        planned = planned.joined("template", stopped)
        end = thought_end(body, model, inside=inside)
        planned = await planned_budget(planned, body, model, end)
        planned = planned.set("request", constraint=constraint.grammar)
        chat = RenderedChat(
            body,
            model,
            planned,
            prompt,
            constraint,
            tuple(ignored),
            starts_in_reasoning=inside,
            thought_end=end,
            dropped=fitting.dropped,
        )
        turn_ends = (*model.formats.turn_end.strings, *stops.strings)
        if scope := stop_scope(chat, turn_ends):
            planned = planned.set("template", stop_scope=scope)
        if planned.params.skip_special_tokens and (marks := chat.format_marks):
            planned = planned.set("template", format_marks=marks)
        return replace(chat, params=planned)

    async def prompt(
        self, sent: ChatCompletionRequest, model: ServedModel, salt: str | None
    ) -> Prompt:
        """The prompt of a chat, without a plan for its answer; its media are fetched.

        Of one that is too long the oldest turns are left out only where the request itself says so.
        """
        body = continued(overridden(sent, model), model.config)
        planned = None
        if body.drops_oldest:
            planned = planned_params(sent, body, model, None, logprobs=None)
        return (await self._fitting(body, model, salt, planned)).prompt

    async def _fitting(
        self,
        body: ChatCompletionRequest,
        model: ServedModel,
        salt: str | None,
        planned: PlannedParams | None,
    ) -> FittingChat:
        """The chat and its prompt; without what has to go, if `planned` says how long it may be."""
        media = await request_media(body, model, self._media, salt)

        async def render(shorter: ChatCompletionRequest, kept: RequestMedia) -> Prompt:
            return await chat_prompt(shorter, model, kept, self._templates)

        if planned is None or not drops_oldest(body, model.config):
            return FittingChat(body, await render(body, media))
        return await fitting_chat(body, model, media, render, planned.params.max_tokens)

    async def completion(
        self,
        sent: CompletionRequest,
        model: ServedModel,
        most_tokens: int | None,
        request_id: str,
    ) -> RequestPlan[CompletionRequest]:
        """The plan of a `/v1/completions` request; rejects what is not supported."""
        body = overridden(sent, model)
        check_completion(body, model)
        planned = planned_params(sent, body, model, most_tokens, logprobs=body.logprobs)
        ignored = self._ignored(sent, body, planned, model, request_id)
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
            shown=[shown_prompt(text, body) for text in texts],
            choices=body.best_of or body.n,
            recipe=CollectorRecipe(),
            constrained_by=asked[0] if asked else None,
            ignored=tuple(ignored) + beyond(body, tokens, self._server),
            clamped=clamped(body, tokens, model, most_tokens, self._server),
            cut=sum(prompt.cut for prompt in tokens),
            prompt_only=body.max_tokens == 0,
            time_limit=time_limit(body, model),
            echoes=[await echo_of(text, body, made, model) for text, made in pairs]
            if body.echo
            else (),
        )

    async def _messages(
        self,
        sent: ChatCompletionRequest,
        model: ServedModel,
        most_tokens: int | None,
        request_id: str,
    ) -> RequestPlan[ChatCompletionRequest]:
        """Plans a chat for models that take messages."""
        body = continued(overridden(sent, model), model.config)
        logprobs = _top_logprobs(body)
        planned = planned_params(sent, body, model, most_tokens, logprobs=logprobs)
        check_passed_on(body, model, self._media)
        chat = await asyncio.to_thread(unrendered_chat, body, model)
        ignored = self._ignored(sent, body, planned, model, request_id) + ignored_unrendered(
            body, model
        )
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
            clamped=clamped(body, None, model, most_tokens, self._server),
            chat=chat,
            time_limit=time_limit(body, model),
        )

    def _ignored(
        self,
        sent: GenerationBody,
        body: GenerationBody,
        planned: PlannedParams,
        model: ServedModel,
        request_id: str,
    ) -> list[str]:
        """Names of fields that have no effect, or not the one that was asked for."""
        names = unsupported(sent, body, planned.params, model)
        if sent.request_id not in (None, request_id):
            names.append("request_id")
        if sent.return_progress and not (sent.stream and model.info.reports_prefill):
            names.append("return_progress")
        prediction = body.prediction if isinstance(body, ChatCompletionRequest) else None
        if prediction and prediction.text and not model.info.predictions:
            names.append("prediction")
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


async def _predicted(body: ChatCompletionRequest, model: ServedModel) -> tuple[int, ...]:
    """The tokens of a `prediction`, no more than there is room for."""
    if not (body.prediction and model.info.predictions):
        return ()
    room, param = model.info.context_length, "prediction.content"
    text = body.prediction.text[: room * model.info.longest_token]
    token_ids = await tokenize_text(model, text, add_special_tokens=False, param=param)
    return tuple(token_ids[:room])


def _top_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None
