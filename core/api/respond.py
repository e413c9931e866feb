"""One way to answer every generation route: streamed or whole."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request, Response

from core.api import sse
from core.chat.compose import Composer
from core.errors import ServingError
from core.generation import Generation
from core.schemas.common import ErrorBody, GenerationBody

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed the connection before there was anything to answer."""


async def respond(
    http: Request,
    body: GenerationBody,
    generation: Generation,
    composer: Composer,
    headers: dict[str, str],
) -> Response:
    """The HTTP answer of a generation.

    A stream's first event is awaited before the status is sent, so that whatever goes wrong up to
    the first token has a status of its own. The generation is aborted when the client leaves.
    """
    if not body.stream:
        answer = await or_client_leaves(http, _whole(generation, composer))
        return Response(answer, media_type="application/json", headers=headers)
    events = _events(generation, composer, include_usage=body.include_usage)
    first = await or_client_leaves(http, anext(events))
    return sse.EventStreamResponse(
        _prepend(first, events),
        ping_interval=http.app.state.config.server.ping_interval,
        headers=headers,
    )


async def _whole(generation: Generation, composer: Composer) -> str:
    async with aclosing(generation.updates()) as updates:
        async for update in updates:
            composer.add(update)
    return composer.whole(generation.counter.usage).model_dump_json(exclude_unset=True)


async def _events(
    generation: Generation, composer: Composer, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    opened = False
    try:
        async with aclosing(generation.updates()) as updates:
            async for update in updates:
                chunks = [*([] if opened else composer.opening()), *composer.chunks(update)]
                opened = True
                if chunks:
                    yield b"".join(sse.event(chunk) for chunk in chunks)
        if include_usage:
            yield sse.event(composer.usage_chunk(generation.counter.usage))
    except Exception as error:
        if not opened:
            raise
        yield _error_event(error, composer.id)
    yield sse.DONE


def _error_event(error: Exception, request_id: str) -> bytes:
    if not isinstance(error, ServingError):
        logger.exception("request %s failed", request_id)
        error = ServingError(f"request {request_id} was aborted; see the server's log")
    return sse.event(ErrorBody.model_validate(error.body()))


async def _prepend(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
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
