"""Clients that read slowly, or not at all."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import anyio
import pytest

from enginebay.chat.answer.delta_reader import DirectSink
from enginebay.server.http.asgi import DIRECT_BODY
from enginebay.server.http.sse import PING, EventStreamResponse

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


class Direct:
    """A connection that is written to directly while its client reads."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reads = True

    def ready(self) -> bool:
        return self.reads

    def write(self, body: bytes) -> None:
        self.written.append(body)


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def scope(direct: Direct) -> Message:
    return {"type": "http", "extensions": {DIRECT_BODY: direct}}


async def test_events_go_straight_to_who_reads_them() -> None:
    """But for the first, and the end, which middleware and the server see."""
    direct, client = Direct(), Client(takes=100)
    sinks: list[DirectSink[bytes]] = []

    async def events() -> AsyncGenerator[bytes, None]:
        assert client.taken == [b"first"]
        [sink] = sinks
        yield b"1"
        assert sink.ready()
        sink.send(b"2")
        yield b"3"
        direct.reads = False
        assert not sink.ready()
        yield b"4"
        direct.reads = True
        yield b"5"

    response = EventStreamResponse(
        events(), first=b"first", send_directly=sinks.append, ping_interval=60, headers={}
    )
    await response(scope(direct), never, client.send)
    assert direct.written == [b"1", b"2", b"3", b"5"]
    assert client.taken == [b"first", b"4"]
    assert client.complete


async def test_without_a_server_that_offers_it_nothing_is_sent_at_once() -> None:
    client = Client(takes=100)
    sinks: list[DirectSink[bytes]] = []
    response = EventStreamResponse(
        Events().generate(), first=b"f", send_directly=sinks.append, ping_interval=60, headers={}
    )
    await response({"type": "http"}, never, client.send)
    assert client.taken == [b"f", b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
    assert not sinks


@pytest.mark.parametrize("ping", [None, PING])
async def test_who_stops_reading_what_is_sent_at_once_is_closed_too(
    ping: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    direct, client = Direct(), Client(takes=1)
    closed = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"1"
            direct.reads = False
            yield b"2"
            raise AssertionError("2 was never read")
        finally:
            closed.append(True)

    response = EventStreamResponse(
        events(), first=b"f", ping_interval=0.001, headers={}, send_timeout=0.001, ping=ping
    )
    await response(scope(direct), never, client.send)
    assert direct.written == [b"1"]
    assert closed
    assert not client.complete
    assert "not read" in caplog.text


async def test_what_is_sent_at_once_puts_off_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the last event is the time that a ping looks at."""
    direct, client = Direct(), Client(takes=100)
    times = iter(range(1000))
    monkeypatch.setattr("enginebay.server.http.sse.monotonic", lambda: float(next(times)))
    sinks: list[DirectSink[bytes]] = []
    sent: list[float] = []

    async def events() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            sinks[0].send(b"x")
            sent.append(response._last_sent)
        yield b"1"

    response = EventStreamResponse(
        events(), first=b"f", send_directly=sinks.append, ping_interval=60, headers={}
    )
    await response(scope(direct), never, client.send)
    assert len(set(sent)) == 3
