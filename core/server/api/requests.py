"""`GET /v1/requests` and `POST /v1/requests/{id}/cancel`."""

import time
from collections.abc import Iterator

from fastapi import APIRouter, Request

from core.chat.answer.running import RunningRequest
from core.contract.errors import RequestNotFoundError
from core.server.access.auth import is_admin
from core.server.http.track import running_request
from core.server.schemas.request_bodies import CancelledRequest, RequestCard, RequestList
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
    asked = [r for r in _visible(http) if request_id in (r.id, r.answer_id)]
    if not asked:
        raise RequestNotFoundError(f"no request {request_id!r} is in progress")
    for request in asked:
        request.cancel()
    return CancelledRequest(id=request_id)


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
