"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request, Response

from core.chat.answer.compose_chat import ChatComposer
from core.chat.plan.reasoning import reasoning_fields
from core.chat.schemas.chat_answer import ChatCompletion
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.server.api.generate import answer, begin, head_of, logprob_form
from core.server.api.served import generating_model
from core.server.http.request_id import tracked
from core.server.services import services

router = APIRouter(tags=["chat"])


@router.post("/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: ChatCompletionRequest, http: Request) -> Response:
    """Answer a conversation, as JSON or as server-sent events."""
    running = tracked(http, body, "chatcmpl")
    model = await generating_model(http, body.model)
    plan = await services(http).planner.chat(body, model, running.most_tokens)
    body = plan.body
    generation = begin(http, plan)
    role = _response_role(body)
    counts_tokens = body.continuous_usage and plan.chat is None
    shows_tokens = body.return_token_ids and plan.chat is None
    composer = ChatComposer(
        head_of(http, plan),
        generation.choices,
        continuous=generation.counter if counts_tokens else None,
        include_usage=body.include_usage,
        prompt_token_ids=plan.prompts if shows_tokens else None,
        logprobs=body.logprobs,
        form=logprob_form(http, plan),
        role=role,
        echoed=_echoed(body, role),
        old_names=body.functions is not None,
        reasoning_fields=reasoning_fields(body, model.config),
    )
    return await answer(http, plan, generation, composer)


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
