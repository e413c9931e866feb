"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request, Response

from core.chat.schemas.chat_answer import ChatCompletion
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.server.http.request_id import tracked
from core.server.http.respond import respond
from core.server.services import services

router = APIRouter(tags=["chat"])


@router.post("/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: ChatCompletionRequest, http: Request) -> Response:
    """Answer a conversation, as JSON or as server-sent events."""
    return await respond(http, services(http).serving.chat(body, tracked(http, body)))
