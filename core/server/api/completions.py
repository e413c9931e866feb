"""`POST /v1/completions`."""

from fastapi import APIRouter, Request, Response

from core.chat.answer.compose_text import Shown, TextComposer
from core.chat.schemas.completion_bodies import Completion, CompletionRequest
from core.server.api.generate import answer, begin, head_of, logprob_form
from core.server.api.served import prompted_model
from core.server.http.request_id import tracked
from core.server.services import services

router = APIRouter(tags=["completions"])


@router.post("/completions", response_model=Completion)
async def create_completion(body: CompletionRequest, http: Request) -> Response:
    """Continue one or more prompts (text or token ids), as JSON or as server-sent events."""
    running = tracked(http, body, "cmpl")
    model = await prompted_model(http, body.model)
    plan = await services(http).planner.completion(body, model, running.most_tokens)
    body = plan.body
    generation = begin(http, plan)
    composer = TextComposer(
        head_of(http, plan),
        len(plan.prompts),
        generation.choices,
        continuous=generation.counter if body.continuous_usage else None,
        include_usage=body.include_usage,
        prompt_token_ids=plan.prompts if body.return_token_ids else None,
        shown=Shown(
            logprobs=body.logprobs is not None,
            prompt_logprobs=body.prompt_logprobs is not None,
            best=body.n,
        ),
        form=logprob_form(http, plan),
        echoes=plan.echoes,
    )
    return await answer(http, plan, generation, composer)
