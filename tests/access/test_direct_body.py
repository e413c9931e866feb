"""Pieces of a stream are written as uvicorn's own `send` writes them, by its names."""

import asyncio
import inspect
import logging
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from enginebay.server.http.asgi import DIRECT_BODY
from enginebay.server.http.protocol import ChunkedBody, limited_protocol

START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
LOG = logging.getLogger(__name__)


class Written(asyncio.Transport):
    """A connection to a client that reads what it likes."""

    def __init__(self, *, encrypted: bool = False) -> None:
        super().__init__({"sslcontext": object()} if encrypted else {})
        self.pieces: list[bytes] = []

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def begun(transport: Written, method: str = "GET") -> Any:
    """An answer of uvicorn's."""
    given: dict[str, Any] = {
        "scope": {"type": "http", "method": method, "http_version": "1.1"},
        "transport": transport,
        "flow": FlowControl(transport),
        "logger": LOG,
        "access_logger": LOG,
        "access_log": False,
        "default_headers": [],
        "message_event": asyncio.Event(),
        "expect_100_continue": False,
        "keep_alive": True,
        "on_response": lambda: None,
    }
    taken = inspect.signature(RequestResponseCycle).parameters
    return RequestResponseCycle(**{name: given[name] for name in taken})


def body(piece: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}


@pytest.mark.parametrize("piece", [b"a", b"data: x\n\n", b"\r\n" * 1000, b"%d", b"x" * 100_000])
async def test_it_writes_what_send_would(piece: bytes) -> None:
    usual, direct = Written(), Written()
    cycle, other = begun(usual), begun(direct)
    await cycle.send(START)
    await other.send(START)
    await cycle.send(body(piece))
    assert ChunkedBody(other).ready()
    ChunkedBody(other).write(piece)
    assert usual.pieces == direct.pieces
    ChunkedBody(other).write(b"")  # would end the body
    assert usual.pieces == direct.pieces


async def test_when_it_may() -> None:
    """From the start of an answer to its end, while its client is there and reads."""
    cycle = begun(Written())
    direct = ChunkedBody(cycle)
    assert direct.ready() is False
    await cycle.send(START)
    assert direct.ready() is True
    cycle.flow.pause_writing()
    assert direct.ready() is False
    cycle.flow.resume_writing()
    assert direct.ready() is True
    cycle.disconnected = True
    assert direct.ready() is False
    cycle.disconnected = False
    await cycle.send(body(b"", more=False))
    assert direct.ready() is False


@pytest.mark.parametrize(
    ("method", "headers"), [("GET", [(b"content-length", b"3")]), ("HEAD", [])]
)
async def test_bodies_that_are_not_chunked(method: str, headers: list[Any]) -> None:
    cycle = begun(Written(), method)
    await cycle.send({**START, "headers": headers})
    assert ChunkedBody(cycle).ready() is False


REQUEST = "GET / HTTP/%s\r\nHost: a\r\n%s\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.parametrize(
    ("version", "encrypted", "headers", "offered"),
    [
        ("1.1", False, "", True),
        ("1.0", False, "", False),
        ("1.1", True, "", False),
        ("1.1", False, UPGRADE, True),  # which it refuses, and answers as any other
    ],
)
async def test_who_is_offered_it(
    version: str, encrypted: bool, headers: str, offered: bool
) -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await send({**START, "headers": [(b"content-length", b"0")]})
        await send(body(b"", more=False))

    config = Config(app, http=limited_protocol(60.0), log_config=None, ws="none", lifespan="off")
    config.load()
    state = ServerState()
    protocol = limited_protocol(60.0)(config=config, server_state=state, app_state={})
    protocol.connection_made(Written(encrypted=encrypted))
    try:
        protocol.data_received((REQUEST % (version, headers)).encode())
        await asyncio.gather(*state.tasks)
        [scope] = scopes
        assert (DIRECT_BODY in scope.get("extensions", {})) is offered
    finally:
        protocol.connection_lost(None)
