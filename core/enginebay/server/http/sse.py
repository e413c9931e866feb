"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from time import monotonic

import anyio
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from enginebay.chat.answer.delta_reader import DirectSink
from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.error_bodies import ErrorBody
from enginebay.contract.errors import ServingError
from enginebay.server.http.asgi import DIRECT_BODY, DirectBody

logger = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
PING = b": ping\n"
"""A comment. A blank line behind it would be an empty event to some SDKs, which end the stream."""


def event(body: BaseModel) -> bytes:
    """One `data:` event; unset fields are left out."""
    return data(body.model_dump_json(exclude_unset=True).encode())


def data(json: bytes) -> bytes:
    """One `data:` event of JSON without line breaks."""
    return b"data: " + json + b"\n\n"


def named(event: str, json: bytes) -> bytes:
    """An event of this name, with JSON without line breaks."""
    return b"event: " + event.encode() + b"\n" + data(json)


def progress(body: BaseModel) -> bytes:
    """One `data:` event, with all fields."""
    return data(body.model_dump_json().encode())


def failure(error: ServingError) -> bytes:
    """An error as the last event."""
    return event(ErrorBody.model_validate(error.body()))


async def of_work(
    running: RunningRequest,
    bodies: AsyncGenerator[BaseModel, None],
    *,
    write: Callable[[BaseModel], bytes] = progress,
    fail: Callable[[ServingError], bytes] = failure,
) -> AsyncGenerator[bytes, None]:
    """Events of long-running work, until the request is cancelled or the server stops. An error
    before the first event is raised; later it is the last event.

    `write` makes an event of a body, `fail` one of an error.
    """
    opened = False
    try:
        async with aclosing(bodies):
            with running.interruptible() as waiting:
                async for body in bodies:
                    opened = True
                    waiting.waits = False
                    yield write(body)
                    waiting.resume()
    except Exception as error:
        if not opened:
            raise
        if not isinstance(error, ServingError):
            logger.exception("%s failed", running.route)
            error = ServingError(f"{running.route} failed; see the server's log")
        yield fail(error)


class EventStreamResponse(StreamingResponse):
    """Streams events and, whenever none came for `ping_interval` seconds, a `ping`.

    Proxies drop idle connections; a comment keeps them, and clients ignore it. The events'
    generator is closed at once when the client leaves, and when it has read nothing for
    `send_timeout` seconds beyond a ping: it would keep others from their turn.

    Events are written to the connection directly where the server offers that, as a token costs
    less there than all middleware. `first`: an event before those of the generator.
    `send_directly` gets a sink for those that need not come through the generator, when `first` has
    been sent.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        first: bytes = b"",
        send_directly: Callable[[DirectSink[bytes]], None] | None = None,
        ping_interval: float,
        headers: Mapping[str, str],
        send_timeout: float = 60.0,
        ping: bytes | None = PING,
        status: int = 200,
        media_type: str = MEDIA_TYPE,
    ) -> None:
        super().__init__(
            events,
            status,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers},
            media_type=media_type,
        )
        self._ping = ping
        self._events = events
        self._first = first
        self._send_directly = send_directly
        self._direct: DirectBody | None = None
        self._ping_interval = ping_interval
        self._send_timeout = send_timeout
        self._last_sent = 0.0
        self._sending = False
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, its events past all middleware if the server lets them."""
        self._direct = scope.get("extensions", {}).get(DIRECT_BODY)
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send the events, and pings beside them."""
        async with aclosing(self._events), anyio.create_task_group() as tasks:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            keep_alive = self._keep_alive if self._ping is not None else self._watch_client
            tasks.start_soon(keep_alive, send, tasks.cancel_scope)
            if self._first:
                await self._send(self._first, send)
            if self._send_directly and self._direct:
                self._send_directly(DirectSink(self._direct.ready, self._write))
            async for chunk in self._events:
                if self._direct and self._direct.ready():
                    self._write(chunk)
                else:
                    await self._send(chunk, send)
            self._complete = True
            tasks.cancel_scope.cancel()
        if self._complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, chunk: bytes, send: Send) -> None:
        self._last_sent, self._sending = monotonic(), True
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sending = False

    def _write(self, chunk: bytes) -> None:
        assert self._direct
        self._last_sent = monotonic()
        self._direct.write(chunk)

    async def _keep_alive(self, send: Send, stream: anyio.CancelScope) -> None:
        ping = {"type": "http.response.body", "body": self._ping, "more_body": True}
        self._last_sent = monotonic()
        while True:
            await anyio.sleep(max(0.0, self._last_sent + self._ping_interval - monotonic()))
            if monotonic() - self._last_sent >= self._ping_interval:
                self._last_sent = monotonic()
                with anyio.move_on_after(self._send_timeout) as sending:
                    await send(ping)
                if sending.cancelled_caught:
                    self._give_up(stream)
                    return

    async def _watch_client(self, send: Send, stream: anyio.CancelScope) -> None:
        """Without pings only a chunk shows that the client does not read."""
        limit = self._ping_interval + self._send_timeout
        self._last_sent = monotonic()
        while True:
            await anyio.sleep(max(self._ping_interval, self._last_sent + limit - monotonic()))
            if self._sending and monotonic() - self._last_sent >= limit:
                self._give_up(stream)
                return

    def _give_up(self, stream: anyio.CancelScope) -> None:
        seconds = self._ping_interval + self._send_timeout
        logger.warning("a client has not read its stream for %g seconds; closing it", seconds)
        stream.cancel()
