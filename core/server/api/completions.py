"""`POST /v1/completions`."""

from fastapi import APIRouter, Request, Response

from core.chat.schemas.completion_bodies import Completion, CompletionRequest
from core.server.http.request_id import tracked
from core.server.http.respond import respond
from core.server.services import services

router = APIRouter(tags=["completions"])


@router.post("/completions", response_model=Completion)
async def create_completion(body: CompletionRequest, http: Request) -> Response:
    """Continue one or more prompts (text or token ids), as JSON or as server-sent events."""
    return await respond(http, services(http).serving.completion(body, tracked(http, body)))
