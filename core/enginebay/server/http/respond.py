"""Responses of all generation routes, streaming or not."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response

from enginebay.server.http import sse
from enginebay.server.http.framing import DATA, Framing
from enginebay.server.http.headers import answer_headers
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.answer import Answer

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed the connection before there was anything to answer."""


async def respond(
    http: Request,
    planning: Awaitable[Answer[Any]],
    framing: Framing = DATA,
) -> Response:
    """The HTTP answer of a request that generates text, with the headers it calls for.

    A stream's first frame is awaited before the status is sent, so that whatever goes wrong up to
    the first token has a status of its own. The generation is aborted when the client leaves.
    `framing`: how a stream is written.
    """
    answer = await or_client_leaves(http, planning)
    id_header = services(http).paths.id_header(http.scope)
    said = {"X-Request-Id": running_request(http).id, **id_header, **answer_headers(answer)}
    if not answer.plan.body.stream:
        whole = await or_client_leaves(http, answer.whole_json())
        return Response(whole, media_type="application/json", headers=said)
    events = answer.stream(framing.write, framing.end)
    first = await or_client_leaves(http, anext(events, b""))
    return sse.EventStreamResponse(
        events,
        first=first,
        send_directly=partial(answer.send_directly, framing.write),
        ping_interval=services(http).config.server.ping_interval,
        ping=framing.ping,
        headers=said,
        media_type=framing.media_type,
    )


async def or_client_leaves(http: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client closes the connection.

    Starlette notices that only while it sends a stream.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
