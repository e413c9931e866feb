"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request, Response

from core.chat.schemas.chat_answer import ChatCompletion
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.chat.schemas.read_body import Sent
from core.server.http.body_route import BodyRoute
from core.server.http.request_id import tracked
from core.server.http.respond import respond
from core.server.services import services

router = APIRouter(tags=["chat"], route_class=BodyRoute)


@router.post("/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: Sent[ChatCompletionRequest], http: Request) -> Response:
    """Answer a conversation, as JSON or as server-sent events."""
    return await respond(http, services(http).serving.chat(body, tracked(http, body)))
