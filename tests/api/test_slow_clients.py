"""Clients that read slowly, or not at all."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import anyio
import pytest

from core.server.http.sse import PING, EventStreamResponse

Message = MutableMapping[str, Any]


class Client:
    """Takes so many pieces of a stream, and then nothing until it is told to."""

    def __init__(self, takes: int) -> None:
        self.taken: list[bytes] = []
        self.complete = False
        self.reads, self.stops = asyncio.Event(), asyncio.Event()
        self._takes = takes

    async def send(self, message: Message) -> None:
        if len(self.taken) >= self._takes:
            self.stops.set()
            await self.reads.wait()
        if body := message.get("body"):
            self.taken.append(body)
        self.complete = message.get("more_body") is False


class Events:
    """Three events, and whether whoever reads them has closed them."""

    closed = False

    async def generate(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(3):
                yield b"data: %d\n\n" % number
        finally:
            self.closed = True


async def test_a_stream_that_nobody_reads_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    events, client = Events(), Client(takes=1)
    response = EventStreamResponse(
        events.generate(), ping_interval=0.001, headers={}, send_timeout=0.001
    )
    await response.stream_response(client.send)
    assert client.taken == [b"data: 0\n\n"]
    assert events.closed
    assert not client.complete
    assert "not read" in caplog.text


async def test_without_pings_too(caplog: pytest.LogCaptureFixture) -> None:
    events, client = Events(), Client(takes=1)
    response = EventStreamResponse(
        events.generate(), ping_interval=0.001, headers={}, send_timeout=0.001, ping=None
    )
    await response.stream_response(client.send)
    assert client.taken == [b"data: 0\n\n"]
    assert events.closed
    assert not client.complete
    assert "not read" in caplog.text


async def test_without_pings_an_engine_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent, so nobody fails to read it, however often that is looked after."""
    goes_on, looks, sleep = asyncio.Event(), iter(range(5)), anyio.sleep

    async def look(delay: float) -> None:
        if next(looks, None) is None:
            goes_on.set()
        await sleep(0)

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"0"
        await goes_on.wait()
        yield b"1"

    monkeypatch.setattr(anyio, "sleep", look)
    client = Client(takes=100)
    response = EventStreamResponse(events(), ping_interval=0, headers={}, send_timeout=0, ping=None)
    await response.stream_response(client.send)
    assert client.taken == [b"0", b"1"]
    assert client.complete


@pytest.mark.parametrize("ping", [None, PING])
async def test_a_slow_client_gets_all(ping: bytes | None) -> None:
    events, client = Events(), Client(takes=1)
    response = EventStreamResponse(events.generate(), ping_interval=0.001, headers={}, ping=ping)
    sending = asyncio.create_task(response.stream_response(client.send))
    await client.stops.wait()
    client.reads.set()
    await sending
    data = [piece for piece in client.taken if piece.startswith(b"data")]
    assert data == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
    assert client.complete
