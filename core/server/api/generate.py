"""From a plan to an HTTP response, for every route that generates text."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response

from core.chat.answer.capture import Capture
from core.chat.answer.composer import Composer, Head
from core.chat.answer.generation import Generation
from core.chat.answer.logprobs import LogprobForm
from core.chat.plan.request_plan import RequestPlan
from core.contract.types import GenerationRequest
from core.models.served import ServedModel
from core.server.api.served import model_counts
from core.server.http.headers import plan_headers
from core.server.http.respond import respond
from core.server.http.track import running_request
from core.server.services import services

logger = logging.getLogger(__name__)


def begin(http: Request, plan: RequestPlan[Any]) -> Generation:
    """The run of a plan, which starts when its updates are read."""
    shared, running = services(http), running_request(http)
    answer_id = running.answer_id or running.id
    requests = plan.requests(answer_id, running.priority(plan.body.priority))
    log_text = shared.config.server.log_prompts
    if log_text:
        for prompt in plan.shown:
            logger.info("%s asks: %r", answer_id, prompt)
    return Generation(
        shared.plugins,
        plan.model,
        requests,
        plan.recipe,
        running,
        counts=model_counts(http, plan.model),
        prompt_only=plan.prompt_only,
        log_text=log_text,
        constrained_by=plan.constrained_by,
        capture=_begin_capture(http, plan, requests),
    )


async def answer(
    http: Request, plan: RequestPlan[Any], generation: Generation, composer: Composer
) -> Response:
    """The response, streamed or whole, with the headers that the plan calls for."""
    headers = {"X-Request-Id": running_request(http).id, **plan_headers(plan)}
    return await respond(http, plan.body, generation, composer, headers)


def head_of(http: Request, plan: RequestPlan[Any]) -> Head:
    """The response header shared by all chunks of an answer."""
    running = running_request(http)
    return Head(
        running.answer_id or running.id, plan.model.name, _fingerprint(http.app.version, plan.model)
    )


def logprob_form(http: Request, plan: RequestPlan[Any]) -> LogprobForm:
    """How tokens in logprobs are written: as the request says, or else the config."""
    asked = plan.body.return_tokens_as_token_ids
    as_ids = services(http).config.server.tokens_as_ids if asked is None else asked
    return LogprobForm(as_ids=bool(as_ids) and plan.chat is None)


def _fingerprint(version: str, model: ServedModel) -> str:
    """`system_fingerprint`: the same as long as the same software answers from the same model."""
    config = model.config
    known = (version, config.backend, config.path, config.options, model.applied_adapter)
    return f"fp_{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}"


def _begin_capture(
    http: Request, plan: RequestPlan[Any], requests: Sequence[GenerationRequest]
) -> Capture | None:
    """Record the request and its answer; None if capturing is off.

    Headers, and keys with them, are left out.
    """
    captures = services(http).captures
    if captures is None:
        return None
    sampling = asdict(plan.params.params)
    sampling["constraint"] = repr(plan.params.params.constraint)
    asked = {
        "time": datetime.now(UTC).isoformat(),
        "enginebay": http.app.version,
        "route": http.url.path,
        "model": plan.model.name,
        "backend": plan.model.config.backend,
        "path": plan.model.config.path,
        "body": plan.body.model_dump(mode="json", exclude_unset=True),
        "prompt": plan.shown[0] if len(plan.shown) == 1 else plan.shown,
        "prompt_token_ids": [list(request.prompt_token_ids) for request in requests],
        "sampling": sampling,
    }
    running = running_request(http)
    return captures.begin(running.answer_id or running.id, plan.recipe, asked)
