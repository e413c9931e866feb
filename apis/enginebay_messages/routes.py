"""`/v1/messages`, Anthropic's API: https://docs.claude.com/en/api/messages."""

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent
from enginebay.server.http.body_route import BodyRoute, converted
from enginebay.server.http.framing import NAMED_WITH_PINGS
from enginebay.server.http.headers import ignored_header
from enginebay.server.http.request_id import tracked
from enginebay.server.http.respond import or_client_leaves, respond
from enginebay.server.services import services
from enginebay.serving.answer import Answer
from enginebay_messages.answer_bodies import CountedTokens, OutputMessage
from enginebay_messages.composer import MessageComposer
from enginebay_messages.request import asked_message, asked_prompt
from enginebay_messages.request_bodies import CountTokensRequest, MessagesRequest

router = APIRouter(tags=["messages"], route_class=BodyRoute)


@router.post("/messages", response_model=OutputMessage)
async def create_message(body: Sent[MessagesRequest], http: Request) -> Response:
    """Answer a conversation, as JSON or as server-sent events."""
    asked = await converted(http, asked_message, body)
    running = tracked(http, asked.body)

    async def planned() -> Answer[MessageComposer]:
        plan = await services(http).serving.plan_chat(asked, running, f"msg_{running.id}")
        return Answer(plan, MessageComposer(body, plan))

    return await respond(http, planned(), NAMED_WITH_PINGS)


@router.post("/messages/count_tokens")
async def count_message_tokens(
    body: Sent[CountTokensRequest], http: Request, response: Response
) -> CountedTokens:
    """How many tokens the prompt of a request has, which may be too many for its model."""
    asked = await converted(http, asked_prompt, body)
    counting = services(http).serving.count_prompt(asked, tracked(http, asked.body))
    counted = await or_client_leaves(http, counting)
    id_header = services(http).paths.id_header(http.scope)
    response.headers.update(ignored_header(counted.ignored) | id_header)
    return CountedTokens(input_tokens=counted.tokens)
