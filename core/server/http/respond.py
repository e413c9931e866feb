"""Responses of all generation routes, streaming or not."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request, Response

from core.chat.answer.composer import Composer
from core.chat.answer.generation import Generation
from core.chat.schemas.error_bodies import ErrorBody
from core.chat.schemas.generation_request import GenerationBody
from core.chat.schemas.usage_bodies import WireAnswer
from core.contract.errors import ServingError
from core.server.http import sse
from core.server.services import services

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
    server = services(http).config.server
    events = _events(
        generation,
        composer,
        include_usage=body.include_usage,
        usage_with_finish=server.usage_with_finish,
    )
    first = await or_client_leaves(http, anext(events))
    return sse.EventStreamResponse(
        prepend(first, events), ping_interval=server.ping_interval, headers=headers
    )


async def _whole(generation: Generation, composer: Composer) -> str:
    try:
        async with aclosing(generation.updates()) as updates:
            async for update in updates:
                composer.add(update)
        return composer.whole(generation.counter.usage).model_dump_json(exclude_unset=True)
    except Exception as error:
        visible = _visible_error(error, composer.head.id)
        if visible is error:
            raise
        raise visible from error


async def _events(
    generation: Generation, composer: Composer, *, include_usage: bool, usage_with_finish: bool
) -> AsyncGenerator[bytes, None]:
    opened = False
    unfinished = generation.choices
    finish: WireAnswer | None = None
    try:
        async with aclosing(generation.updates()) as updates:
            async for update in updates:
                if ready := composer.ready_made(update):
                    yield sse.data(ready)
                    continue
                chunks = list(composer.chunks(update))
                unfinished -= update.finish_reason is not None
                if include_usage and usage_with_finish and not unfinished:
                    finish = chunks.pop()
                if chunks:
                    events = b"".join(sse.event(chunk) for chunk in chunks)
                    opened = True
                    yield events
        if include_usage:
            usage = generation.counter.usage
            if finish is None:
                finish = composer.usage_chunk(usage)
            finish.usage = usage
            yield sse.event(finish)
    except Exception as error:
        visible = _visible_error(error, composer.head.id)
        if not opened and visible is error:
            raise
        if not opened:
            raise visible from error
        yield sse.event(ErrorBody.model_validate(visible.body()))
    yield sse.DONE


def _visible_error(error: Exception, id: str) -> ServingError:
    """An error as the client may see it."""
    if isinstance(error, ServingError):
        return error
    logger.error("request %s failed", id, exc_info=error)
    return ServingError(f"request {id} was aborted by an internal error; see the server's log")


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
