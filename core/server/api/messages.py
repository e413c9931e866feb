"""`/v1/messages`, Anthropic's API: https://docs.claude.com/en/api/messages."""

from fastapi import APIRouter, Request, Response

from core.apis.messages.ask_messages import asked_message, asked_prompt
from core.apis.messages.compose_messages import MessageComposer
from core.apis.schemas.messages_answer import CountedTokens, OutputMessage
from core.apis.schemas.messages_request import CountTokensRequest, MessagesRequest
from core.server.api.served import prompted_model
from core.server.api.tokens import tokens_of
from core.server.http.framing import NAMED_WITH_PINGS
from core.server.http.headers import unsupported_header
from core.server.http.request_id import tracked
from core.server.http.respond import respond
from core.server.services import services
from core.serving.answer import Answer

router = APIRouter(tags=["messages"])


@router.post("/messages", response_model=OutputMessage)
async def create_message(body: MessagesRequest, http: Request) -> Response:
    """Answer a conversation, as JSON or as server-sent events."""
    asked = asked_message(body)
    running = tracked(http, asked.body)

    async def planned() -> Answer[MessageComposer]:
        plan = await services(http).serving.plan_chat(asked, running, f"msg_{running.id}")
        return Answer(plan, MessageComposer(body, plan))

    return await respond(http, planned(), NAMED_WITH_PINGS, headers=_id_header(http))


@router.post("/messages/count_tokens")
async def count_message_tokens(
    body: CountTokensRequest, http: Request, response: Response
) -> CountedTokens:
    """How many tokens the prompt of a request has, which may be too many for its model."""
    asked = asked_prompt(body)
    tracked(http, asked.body)
    with asked.names.in_errors():
        model = await prompted_model(http, asked.body.model)
        prompt = await services(http).serving.planner.prompt(asked.body, model)
        tokens = await tokens_of(model, prompt, "messages")
    of_prompt = asked.names.each((*asked.body.unknown_fields(), *prompt.ignored))
    response.headers.update(unsupported_header(http, (*asked.ignored, *of_prompt)))
    response.headers.update(_id_header(http))
    return CountedTokens(input_tokens=len(tokens))


def _id_header(http: Request) -> dict[str, str]:
    return services(http).paths.id_header(http.scope)
