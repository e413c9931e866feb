"""`POST /v1/completions`."""

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.completion_bodies import Completion, CompletionRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.request_id import tracked
from enginebay.server.http.respond import respond
from enginebay.server.services import services

router = APIRouter(tags=["completions"], route_class=BodyRoute)


@router.post("/completions", response_model=Completion)
async def create_completion(body: Sent[CompletionRequest], http: Request) -> Response:
    """Continue one or more prompts (text or token ids), as JSON or as server-sent events."""
    return await respond(http, services(http).serving.completion(body, tracked(http, body)))
