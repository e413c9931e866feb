"""Responses of all generation routes, streaming or not."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request, Response

from core.chat.schemas.error_bodies import ErrorBody
from core.contract.errors import ServingError
from core.server.http import sse
from core.server.http.headers import plan_headers
from core.server.http.track import running_request
from core.server.services import services
from core.serving.answer import Answer

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed the connection before there was anything to answer."""


async def respond(http: Request, planning: Awaitable[Answer]) -> Response:
    """The HTTP answer of a request that generates text, with the headers its plan calls for.

    A stream's first event is awaited before the status is sent, so that whatever goes wrong up to
    the first token has a status of its own. The generation is aborted when the client leaves.
    """
    answer = await or_client_leaves(http, planning)
    headers = {"X-Request-Id": running_request(http).id, **plan_headers(answer.plan)}
    if not answer.plan.body.stream:
        whole = await or_client_leaves(http, answer.whole_json())
        return Response(whole, media_type="application/json", headers=headers)
    chunks = answer.json_chunks()
    first = await or_client_leaves(http, anext(chunks, []))
    return sse.EventStreamResponse(
        _events(first, chunks),
        ping_interval=services(http).config.server.ping_interval,
        headers=headers,
    )


async def _events(
    first: list[bytes], rest: AsyncGenerator[list[bytes], None]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream's chunks; an error is the last before the end."""
    try:
        async with aclosing(rest):
            yield b"".join(map(sse.data, first))
            async for chunks in rest:
                yield b"".join(map(sse.data, chunks))
    except ServingError as error:
        yield sse.event(ErrorBody.model_validate(error.body()))
    yield sse.DONE


async def prepend(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`first`, then `rest`, which is closed with this."""
    async with aclosing(rest):
        yield first
        async for item in rest:
            yield item


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
