"""`POST /v1/chat/completions`."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request, Response

from core.api.params import (
    choose_sampling,
    generating_model,
    generation_requests,
    request_id,
    tokenize_prompt,
)
from core.api.respond import respond
from core.chat.collector import Collector
from core.chat.compose import ChatComposer
from core.chat.prompt import render_prompt
from core.errors import InvalidRequestError, UnsupportedParameterError
from core.generation import Generation
from core.models import LoadedModel
from core.parsing import new_call_id
from core.schemas.chat import ChatCompletion, ChatCompletionRequest, Tool

router = APIRouter(tags=["chat"])


@router.post("/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: ChatCompletionRequest, http: Request) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    model = generating_model(http, body.model)
    _refuse_what_cannot_be_enforced(body)
    sampling, headers = choose_sampling(http, body, model, logprobs=_top_logprobs(body))
    prompt = render_prompt(body, model.template)
    token_ids = await tokenize_prompt(model, prompt, add_special_tokens=False, param="messages")
    base = request_id(http)
    id = f"chatcmpl-{base}"
    generation = Generation(
        http.app.state.plugins,
        model,
        generation_requests([token_ids], body, model, sampling, id),
        _new_collector(model, prompt, body.offered_tools),
    )
    composer = ChatComposer(id, model.name, generation.choices, logprobs=body.logprobs)
    return await respond(http, body, generation, composer, {"X-Request-Id": base, **headers})


def _new_collector(
    model: LoadedModel, prompt: str, offered: Sequence[Tool]
) -> Callable[[], Collector]:
    """What makes the collector of each choice."""
    reasoning = model.reasoning
    tools = model.tools if offered else None
    schemas = {tool.function.name: tool.function.parameters or {} for tool in offered}
    inside = reasoning is not None and reasoning.starts_inside(prompt)
    spans = tools.spans if tools and model.config.tools_in_reasoning else ()
    return lambda: Collector(
        reasoning.parser(inside=inside, spans=spans) if reasoning else None,
        tools.parser(schemas) if tools else None,
        starts_in_reasoning=inside,
        trim=True,
        new_call_id=tools.new_call_id if tools else new_call_id,
    )


def _top_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _refuse_what_cannot_be_enforced(body: ChatCompletionRequest) -> None:
    """Better a clear answer than a constraint that is silently not one."""
    if body.response_format and body.response_format.type != "text":
        raise UnsupportedParameterError(
            f"response_format {body.response_format.type!r} cannot be enforced yet",
            param="response_format",
        )
    if body.tool_choice not in (None, "none", "auto"):
        raise UnsupportedParameterError(
            "tool_choice can be 'none' or 'auto'; a forced call cannot be enforced yet",
            param="tool_choice",
        )
