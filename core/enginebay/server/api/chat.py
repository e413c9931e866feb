"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.chat_answer import ChatCompletion
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.request_id import tracked
from enginebay.server.http.respond import respond
from enginebay.server.services import services

router = APIRouter(tags=["chat"], route_class=BodyRoute)


@router.post("/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: Sent[ChatCompletionRequest], http: Request) -> Response:
    """Answer a conversation, as JSON or as server-sent events."""
    return await respond(http, services(http).serving.chat(body, tracked(http, body)))
