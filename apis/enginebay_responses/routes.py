"""`/v1/responses`, OpenAI's newer API: https://platform.openai.com/docs/api-reference/responses."""

from typing import Literal, cast

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import (
    InvalidRequestError,
    NotOfferedError,
    UnsupportedParameterError,
)
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.framing import NAMED
from enginebay.server.http.headers import ignored_header
from enginebay.server.http.request_id import tracked
from enginebay.server.http.respond import or_client_leaves, respond
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.answer import Answer
from enginebay_responses.answer_bodies import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseObject,
)
from enginebay_responses.composer import ResponseComposer
from enginebay_responses.input import NO_COMPACTION
from enginebay_responses.request_bodies import ResponsesRequest
from enginebay_responses.responses import Responses, page

router = APIRouter(tags=["responses"], route_class=BodyRoute)


@router.post("/responses", response_model=ResponseObject)
async def create_response(body: Sent[ResponsesRequest], http: Request) -> Response:
    """Answer items, and those of earlier responses, as JSON or as server-sent events."""
    return await respond(http, _answer(body, http), NAMED)


@router.post("/responses/input_tokens")
async def count_input_tokens(
    body: Sent[ResponsesRequest], http: Request, response: Response
) -> InputTokens:
    """How many tokens the input of such a request has."""
    responses, running = _responses(http), running_request(http)
    request = await responses.read(body, running)
    counted = await or_client_leaves(http, responses.count(request, running))
    response.headers.update(ignored_header(counted.ignored))
    return InputTokens(input_tokens=counted.tokens)


@router.post("/responses/compact", include_in_schema=False)
async def compact_responses() -> Response:
    """Refuse to compact a conversation, which clients can do with an ordinary request."""
    raise NotOfferedError(f"{NO_COMPACTION}. There is no route POST /v1/responses/compact")


@router.get("/responses/{response_id}", response_model=ResponseObject)
async def get_response(response_id: str, http: Request) -> Response:
    """A response that was stored, as it was answered."""
    if http.query_params.get("stream", "false").lower() not in ("false", "0", ""):
        raise UnsupportedParameterError(
            "only responses made in the background can be streamed again, and there are none here",
            param="stream",
        )
    found = await _responses(http).find(response_id, running_request(http))
    return Response(to_json(found.response), media_type="application/json")


@router.delete("/responses/{response_id}")
async def delete_response(response_id: str, http: Request) -> DeletedResponse:
    """Delete a stored response; those that go on from it stay whole."""
    await _responses(http).delete(response_id, running_request(http))
    return DeletedResponse(id=response_id)


@router.post("/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(response_id: str, http: Request) -> Response:
    """Cancel a response in the background, of which this server has none."""
    await _responses(http).find(response_id, running_request(http))
    raise InvalidRequestError(
        "only responses in the background can be cancelled; one that is being sent ends when its "
        "connection is closed, or by /v1/requests/{id}/cancel"
    )


@router.get("/responses/{response_id}/input_items")
async def list_input_items(response_id: str, http: Request) -> InputItemList:
    """The items of a stored response's own input, the newest first unless `order` is `asc`."""
    query = http.query_params
    order, limit = query.get("order", "desc"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order: Input should be 'asc' or 'desc'", param="order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= 100):
        raise InvalidRequestError("limit: Input should be from 1 to 100", param="limit")
    found = await _responses(http).find(response_id, running_request(http))
    return page(found.input, cast("Literal['asc', 'desc']", order), int(limit), query.get("after"))


def _responses(http: Request) -> Responses:
    return services(http).kept(Responses)


async def _answer(body: ResponsesRequest, http: Request) -> Answer[ResponseComposer]:
    responses = _responses(http)
    request = await responses.read(body, running_request(http))
    return await responses.answer(request, tracked(http, request.chat.body))
