"""`GET /v1/requests`, and `POST` to `/v1/requests/{id}/cancel` and `…/end_reasoning`.

Of servers that share their limits each shows what all of them have, and passes on what is about a
request of another one, which decides by the name and role of the key what it may see and do.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request

from enginebay.chat.answer.running import RunningRequest
from enginebay.contract.errors import NotReasoningError, RequestNotFoundError, ServingError
from enginebay.models.permissions import Action, allowed
from enginebay.server.access.auth import is_admin
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.track import running_request
from enginebay.server.schemas.request_bodies import (
    CancelledRequest,
    EndedReasoning,
    FrontRequestCard,
    FrontRequestList,
    RequestCard,
    RequestList,
)
from enginebay.server.services import Services, services

router = APIRouter(tags=["requests"], route_class=BodyRoute)

Asker = tuple[str | None, bool]
"""The name of the key of whoever asks, and whether that is an admin: see `permissions`."""


@router.get("/requests")
async def list_requests(http: Request) -> FrontRequestList | RequestList:
    """The requests in progress: those with the same key, or all for admins.

    Of all servers that share their limits, if this is one of several.
    """
    shared, asker = services(http), _asker(http)
    if shared.peers.name is None:
        return RequestList(data=_cards(shared, asker))
    return await _of_all(shared, shared.peers.name, asker)


@router.post("/requests/{request_id:path}/cancel")  # ids may hold slashes
async def cancel_request(request_id: str, http: Request) -> CancelledRequest:
    """Cancel a request, by the id of its answer or its `X-Request-Id`.

    An answer that has begun ends with the `finish_reason` `abort`; a waiting request gets an error
    with the code `request_cancelled`.
    """
    shared, asker = services(http), _asker(http)
    if not _cancel(shared, request_id, asker):
        await _by_peers(shared, "cancel", request_id, asker)
    return CancelledRequest(id=request_id)


@router.post("/requests/{request_id:path}/end_reasoning")
async def end_reasoning(request_id: str, http: Request) -> EndedReasoning:
    """End the thought of a request's choices now, by its id: they go on with their answers.

    A 409 with the code `not_reasoning` if none of them is thinking, or nobody can end it.
    """
    shared, asker = services(http), _asker(http)
    ended = await _end_reasoning(shared, request_id, asker)
    if ended is None:
        ended = await _by_peers(shared, "end_reasoning", request_id, asker)
    return EndedReasoning(id=request_id, ended=ended)


def answer_peers(shared: Services) -> None:
    """Do what other servers pass on."""

    async def cards(asker: Asker) -> list[dict[str, Any]]:
        with suppress(ServingError):
            await shared.peers.refresh_positions(shared.models)
        return [card.model_dump() for card in _cards(shared, asker)]

    async def cancel(asked: tuple[str, Asker]) -> int | None:
        return _cancel(shared, *asked) or None

    async def end(asked: tuple[str, Asker]) -> int | None:
        return await _end_reasoning(shared, *asked)

    shared.peers.handlers.update({"requests": cards, "cancel": cancel, "end_reasoning": end})


async def _of_all(shared: Services, own_name: str, asker: Asker) -> FrontRequestList:
    found: list[tuple[str, dict[str, Any]]] = []
    unanswered: list[str] = []
    problem = None
    try:
        answers = await shared.peers.ask("requests", asker, patience=0.0)
        await shared.peers.refresh_positions(shared.models)
        unanswered = answers.silent
        for name, cards in answers.given:
            if isinstance(cards, list):
                found += [(name, card) for card in cards]
            else:
                unanswered.append(name)
    except ServingError as error:
        problem = error.message
    found += [(own_name, card.model_dump()) for card in _cards(shared, asker)]
    data = [FrontRequestCard(**card, front=name) for name, card in found]
    data.sort(key=lambda card: card.age_s, reverse=True)
    return FrontRequestList(data=data, unanswered=unanswered, problem=problem)


async def _by_peers(shared: Services, kind: str, id: str, asker: Asker) -> int:
    """Have the server that has a request do something with it; how often it did."""
    answers = await shared.peers.ask(kind, (id, asker))
    given = [answer for _, answer in answers.given]
    if done := sum(answer for answer in given if isinstance(answer, int)):
        return done
    for answer in given:
        if isinstance(answer, NotReasoningError):
            raise answer
    silent = ", ".join(answers.silent)
    unsure = f"; {silent} did not answer, try again" if silent else ""
    raise RequestNotFoundError(f"no request {id!r} is in progress{unsure}")


def _cancel(shared: Services, request_id: str, asker: Asker) -> int:
    """How many requests of this server are being cancelled."""
    named = _named(shared, request_id, asker, "cancel_request")
    for request in named:
        request.cancel()
    return len(named)


async def _end_reasoning(shared: Services, request_id: str, asker: Asker) -> int | None:
    """How many choices do not think any more; None if this server has no such request."""
    refused: NotReasoningError | None = None
    ended = 0
    named = _named(shared, request_id, asker, "end_reasoning")
    for request in named:
        try:
            ended += await _end(request)
        except NotReasoningError as error:
            refused = error
    if refused and not ended:
        raise refused
    return ended if named else None


async def _end(request: RunningRequest) -> int:
    if request.end_reasoning is None:
        raise NotReasoningError("it generates nothing yet")
    return await request.end_reasoning()


def _asker(http: Request) -> Asker:
    return running_request(http).key_name, is_admin(http)


def _named(shared: Services, request_id: str, asker: Asker, action: Action) -> list[RunningRequest]:
    return [r for r in _reached(shared, asker, action) if request_id in (r.id, r.answer_id)]


def _reached(shared: Services, asker: Asker, action: Action) -> Iterator[RunningRequest]:
    """The requests to which the asker may do this."""
    name, is_admin = asker
    reach = allowed(action, is_admin=is_admin)
    for request in shared.serving.requests:
        if request.asks and (reach == "all" or (reach == "own" and request.key_name == name)):
            yield request


def _cards(shared: Services, asker: Asker) -> list[RequestCard]:
    return [_card(request) for request in _reached(shared, asker, "see_request")]


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
