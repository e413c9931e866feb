"""Chats and completions, from body to `Answer`."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from enginebay.chat.answer.capture import Capture, Captures
from enginebay.chat.answer.compose_chat import ChatComposer
from enginebay.chat.answer.compose_openai import Head, UsageForm
from enginebay.chat.answer.compose_text import Shown, TextComposer
from enginebay.chat.answer.counts import Counts
from enginebay.chat.answer.generation import Generation
from enginebay.chat.answer.logprobs import LogprobForm, TokenPieces
from enginebay.chat.answer.running import RunningRequest, RunningRequests
from enginebay.chat.plan.media_parts import without_media
from enginebay.chat.plan.planner import Planner
from enginebay.chat.plan.reasoning import reasoning_fields
from enginebay.chat.plan.request_plan import RequestPlan
from enginebay.chat.plan.strictness import accept_ignored
from enginebay.chat.plan.uncut_tokens import uncut_prompt
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.config.durations import seconds
from enginebay.config.schema import Config, resolved_path
from enginebay.contract.types import GenerationRequest
from enginebay.models.loading.entry import ReportModelProgress
from enginebay.models.loading.running_backends import (
    MakeBackend,
    MakeGate,
    local_backend,
    local_gate,
)
from enginebay.models.registry import Models
from enginebay.models.served import ServedModel
from enginebay.plugins import Plugins
from enginebay.serving.answer import Body, OpenAIAnswer, Planned
from enginebay.serving.asked import Asked
from enginebay.serving.leases import Leases
from enginebay.serving.pooling import Pooling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CountedPrompt:
    """The length of a prompt. `ignored`: the client's names of fields without effect on it."""

    tokens: int
    ignored: tuple[str, ...]


class Serving:
    """Answers requests from Python values, on one event loop; routes only put HTTP around it.

    Whatever it does for a request, it does in the name of a `RunningRequest`, which holds the model
    until it is released. Raises `ServingError`s, each with the status it has in HTTP. `requests`
    are those in progress, `counts` what all of them came to, `pooling` is for what is computed
    without generating text.
    """

    def __init__(
        self,
        config: Config,
        plugins: Plugins,
        report_progress: ReportModelProgress,
        *,
        make_gate: MakeGate = local_gate,
        make_backend: MakeBackend = local_backend,
    ) -> None:
        self.config = config
        self.plugins = plugins
        self.models = Models(
            config, plugins, report_progress, make_gate=make_gate, make_backend=make_backend
        )
        self.leases = Leases(self.models)
        self.planner = Planner(config)
        self.requests = RunningRequests()
        self.counts = Counts()
        self.captures = _captures(config)
        self._token_pieces = TokenPieces()
        self.pooling = Pooling(self.leases, self.models, self.counts, config.server)

    async def chat(
        self, body: ChatCompletionRequest, running: RunningRequest, *, id: str | None = None
    ) -> OpenAIAnswer:
        """The answer to a conversation, with this id; it runs when it is read."""
        asked = Asked(body=body)
        planned = await self.plan_chat(asked, running, id or f"chatcmpl-{running.id}")
        return OpenAIAnswer(planned, self._chat_composer(planned))

    async def completion(
        self, body: CompletionRequest, running: RunningRequest, *, id: str | None = None
    ) -> OpenAIAnswer:
        """The continuation of one or more prompts, with this id; it runs when it is read."""
        asked = Asked(body=body)
        planned = await self.plan_completion(asked, running, id or f"cmpl-{running.id}")
        return OpenAIAnswer(planned, self._text_composer(planned))

    async def plan_chat(
        self, asked: Asked[ChatCompletionRequest], running: RunningRequest, id: str
    ) -> Planned[ChatCompletionRequest]:
        """A conversation, ready to be answered in any API, by an answer with this id."""
        self._begin(asked, running, id)
        body = asked.body
        with asked.names.in_errors():
            model = await self.leases.generating(running, body.model)
            salt = running.cache_salt(body.cache_salt)
            plan = await self.planner.chat(body, model, running.most_tokens, running.id, salt)
            plan = replace(plan, prompt_only=asked.prompt_only)
            return self._planned(asked, plan, running)

    async def plan_completion(
        self, asked: Asked[CompletionRequest], running: RunningRequest, id: str
    ) -> Planned[CompletionRequest]:
        """One or more prompts, ready to be continued in any API, by an answer with this id."""
        self._begin(asked, running, id)
        body = asked.body
        with asked.names.in_errors():
            model = await self.leases.prompted(running, body.model)
            plan = await self.planner.completion(body, model, running.most_tokens, running.id)
            return self._planned(asked, plan, running)

    async def count_prompt(
        self, asked: Asked[ChatCompletionRequest], running: RunningRequest
    ) -> CountedPrompt:
        """The length of a conversation's prompt, which may be too long for its model."""
        with asked.names.in_errors():
            model = await self.leases.prompted(running, asked.body.model)
            salt = running.cache_salt(asked.body.cache_salt)
            prompt = await self.planner.prompt(asked.body, model, salt)
            tokens = len(await uncut_prompt(model, prompt, "messages"))
        of_prompt = asked.names.each((*asked.body.unknown_fields(), *prompt.ignored))
        ignored = tuple(dict.fromkeys((*asked.ignored, *of_prompt)))
        accept_ignored(ignored, self.config.server)
        return CountedPrompt(tokens, ignored)

    async def close(self) -> None:
        """Unload all models, and wait until captures are written."""
        self.planner.close()
        await self.models.close()
        if self.captures:
            await asyncio.to_thread(self.captures.close)

    def _begin(self, asked: Asked[Any], running: RunningRequest, id: str) -> None:
        """Note in `running` how it is answered; raises for ignored fields with `strict_params`."""
        running.expect_answer(id, stream=asked.body.stream)
        if asked.body.keep_alive is not None:
            running.keep_alive = seconds(asked.body.keep_alive)
        accept_ignored(asked.ignored, self.config.server)

    def _planned(
        self, asked: Asked[Body], plan: RequestPlan[Body], running: RunningRequest
    ) -> Planned[Body]:
        priority = running.priority(plan.body.priority)
        salt = running.cache_salt(plan.body.cache_salt)
        requests = plan.requests(running.shown_id, priority, salt)
        log_text = self.config.server.log_prompts
        if log_text:
            for prompt in _without_media(plan, plan.shown):
                logger.info("%s asks: %r", running.shown_id, prompt)
        generation = Generation(
            self.plugins,
            plan.model,
            requests,
            plan.recipe,
            running,
            counts=self.counts.of(plan.model.config.name),
            prompt_only=plan.prompt_only,
            log_text=log_text,
            constrained_by=plan.constrained_by,
            capture=self._capture(plan, requests, running),
            time_limit=plan.time_limit,
            thought_end=plan.thought_end,
        )
        fingerprint = _fingerprint(self.plugins.version, plan.model)
        head = Head(running.shown_id, plan.model.name, fingerprint)
        return Planned(
            asked=asked,
            plan=plan,
            generation=generation,
            head=head,
            logprob_form=LogprobForm(pieces=self._token_pieces),
        )

    def _chat_composer(self, planned: Planned[ChatCompletionRequest]) -> ChatComposer:
        plan, body, generation = planned.plan, planned.plan.body, planned.generation
        prompts = plan.prompts if plan.chat is None else None
        role = _response_role(body, plan.model)
        return ChatComposer(
            planned.head,
            generation.choices,
            generation.counter,
            usage=self._usage_form(plan),
            prompt_token_ids=prompts if body.return_token_ids else None,
            logprobs=body.logprobs,
            form=self._logprob_form(plan),
            role=role,
            echoed=_echoed(body, role),
            old_names=body.old_names,
            reasoning_fields=reasoning_fields(body, plan.model.config),
        )

    def _text_composer(self, planned: Planned[CompletionRequest]) -> TextComposer:
        plan, body, generation = planned.plan, planned.plan.body, planned.generation
        return TextComposer(
            planned.head,
            len(plan.prompts),
            generation.choices,
            generation.counter,
            usage=self._usage_form(plan),
            prompt_token_ids=plan.prompts if body.return_token_ids else None,
            shown=Shown(
                logprobs=body.logprobs is not None,
                prompt_logprobs=body.prompt_logprobs is not None,
                best=body.n,
            ),
            form=self._logprob_form(plan),
            echoes=plan.echoes,
        )

    def _usage_form(self, plan: RequestPlan[Any]) -> UsageForm:
        return UsageForm(
            included=plan.body.include_usage,
            continuous=plan.body.continuous_usage and plan.chat is None,
            with_finish=self.config.server.usage_with_finish,
            timings=self.config.server.timings,
            timings_per_token=plan.body.timings_per_token,
        )

    def _logprob_form(self, plan: RequestPlan[Any]) -> LogprobForm:
        """How tokens in logprobs are written: as the request says, or else the config."""
        asked = plan.body.return_tokens_as_token_ids
        as_ids = self.config.server.tokens_as_ids if asked is None else asked
        return LogprobForm(bool(as_ids) and plan.chat is None, self._token_pieces)

    def _capture(
        self,
        plan: RequestPlan[Any],
        requests: Sequence[GenerationRequest],
        running: RunningRequest,
    ) -> Capture | None:
        """Record the request and its answer; None if capturing is off.

        Headers, and keys with them, are left out.
        """
        if self.captures is None:
            return None
        sampling = asdict(plan.params.params)
        sampling["constraint"] = repr(plan.params.params.constraint)
        prompts = _without_media(plan, plan.shown)
        asked = {
            "time": datetime.now(UTC).isoformat(),
            "enginebay": self.plugins.version,
            "route": running.route,
            "model": plan.model.name,
            "backend": plan.model.config.backend,
            "path": plan.model.config.path,
            "body": _without_media(plan, plan.body.model_dump(exclude_unset=True)),
            "prompt": prompts[0] if len(prompts) == 1 else prompts,
            "prompt_token_ids": [list(request.prompt_token_ids) for request in requests],
            "sampling": sampling,
        }
        return self.captures.begin(running.shown_id, plan.recipe, asked)


def _without_media(plan: RequestPlan[Any], value: Any) -> Any:
    """The same JSON value, without the data of media that the request holds."""
    if isinstance(plan.body, ChatCompletionRequest):
        return without_media(value, plan.body.messages)
    return value


def _captures(config: Config) -> Captures | None:
    if config.server.capture is None:
        return None
    folder = Path(resolved_path(config.server.capture, config.base))
    return Captures(folder, config.server.capture_files)


def _fingerprint(version: str, model: ServedModel) -> str:
    """`system_fingerprint`: the same as long as the same software answers from the same model."""
    config = model.config
    known = (version, config.backend, config.path, config.options, model.applied_adapter)
    return f"fp_{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}"


def _response_role(body: ChatCompletionRequest, model: ServedModel) -> str:
    """Without a generation prompt the model goes on with the last message, in its role."""
    goes_on = body.continue_final_message or not body.add_generation_prompt
    return body.messages[-1].role if goes_on else model.config.response_role


def _echoed(body: ChatCompletionRequest, role: str) -> str:
    """What `echo` puts in front of the answer: the last message, if it is of the answer's role."""
    last = body.messages[-1]
    if not body.echo or last.role != role or last.content is None:
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(part.text or "" for part in last.content if not part.is_thought)
