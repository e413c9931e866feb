"""`GET /v1/requests`, and `POST` to `/v1/requests/{id}/cancel` and `…/end_reasoning`."""

import time
from collections.abc import Iterator

from fastapi import APIRouter, Request

from core.chat.answer.running import RunningRequest
from core.contract.errors import NotReasoningError, RequestNotFoundError
from core.server.access.auth import is_admin
from core.server.http.track import running_request
from core.server.schemas.request_bodies import (
    CancelledRequest,
    EndedReasoning,
    RequestCard,
    RequestList,
)
from core.server.services import services

router = APIRouter(tags=["requests"])


@router.get("/requests")
async def list_requests(http: Request) -> RequestList:
    """The requests in progress: those with the same key, or all for admins."""
    return RequestList(data=[_card(request) for request in _visible(http)])


@router.post("/requests/{request_id:path}/cancel")  # ids may hold slashes
async def cancel_request(request_id: str, http: Request) -> CancelledRequest:
    """Cancel a request, by the id of its answer or its `X-Request-Id`.

    An answer that has begun ends with the `finish_reason` `abort`; a waiting request gets an error
    with the code `request_cancelled`.
    """
    for request in _named(request_id, http):
        request.cancel()
    return CancelledRequest(id=request_id)


@router.post("/requests/{request_id:path}/end_reasoning")
async def end_reasoning(request_id: str, http: Request) -> EndedReasoning:
    """End the thought of a request's choices now, by its id: they go on with their answers.

    A 409 with the code `not_reasoning` if none of them is thinking, or nobody can end it.
    """
    refused: NotReasoningError | None = None
    ended = 0
    for request in _named(request_id, http):
        try:
            ended += await _end_reasoning(request)
        except NotReasoningError as error:
            refused = error
    if refused and not ended:
        raise refused
    return EndedReasoning(id=request_id, ended=ended)


async def _end_reasoning(request: RunningRequest) -> int:
    if request.end_reasoning is None:
        raise NotReasoningError("it generates nothing yet")
    return await request.end_reasoning()


def _named(request_id: str, http: Request) -> list[RunningRequest]:
    asked = [r for r in _visible(http) if request_id in (r.id, r.answer_id)]
    if not asked:
        raise RequestNotFoundError(f"no request {request_id!r} is in progress")
    return asked


def _visible(http: Request) -> Iterator[RunningRequest]:
    everybody, own = is_admin(http), running_request(http).key_name
    for request in services(http).serving.requests:
        if request.asks and (everybody or request.key_name == own):
            yield request


def _card(request: RunningRequest) -> RequestCard:
    usage = request.counter.usage if request.counter else None
    return RequestCard(
        id=request.shown_id,
        model=request.model,
        key=request.key_name,
        route=request.route,
        state=request.state,
        position=request.position,
        age_s=time.monotonic() - request.received,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        n=request.choices,
        stream=request.stream,
    )
