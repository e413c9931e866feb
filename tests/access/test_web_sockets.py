"""WebSocket routes of a wing: checked, counted and ended as other requests are."""

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, HTTPException, WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from enginebay import Wing
from enginebay.contract.errors import ModelNotFoundError
from enginebay.contract.wing import ErrorForm
from enginebay.plugins import Plugins
from enginebay.server.access import keys_file
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.revoked import cancel_revoked
from enginebay.server.app import create_app
from enginebay.server.http.sockets import listen
from tests.support import Server, plugins_with, scripted, scripted_config, serve, served_on

KEYS = [
    keys_file.new_entry("anna", "key-of-anna", requests_per_minute=3, concurrent_requests=2),
    keys_file.new_entry("root", "key-of-root", "admin"),
]
LIMIT = 1000
"""Bytes of a message."""
SHORT = 0.3
"""A time-out, in seconds, that a test can wait for."""


class Echo(Wing):
    """Sockets that send back what they get, and some that end."""

    name = "echo"
    public = ("/v1/public",)

    def routers(self, kernel: Any) -> list[APIRouter]:
        router = APIRouter()

        @router.websocket("/v1/echo")
        @router.websocket("/v1/public")
        @router.websocket("/echo/{word}")
        async def echo(web_socket: WebSocket) -> None:
            await web_socket.accept()
            while True:
                await web_socket.send_text(await web_socket.receive_text())

        @router.websocket("/v1/number")
        async def number(web_socket: WebSocket, number: int) -> None:
            await web_socket.accept()
            await web_socket.send_json(number + 1)

        @router.websocket("/echo/ends/{how}")
        async def ends(web_socket: WebSocket, how: str, accept: bool = False) -> None:
            if accept:
                await web_socket.accept()
            match how:
                case "floods":
                    while True:
                        await web_socket.send_bytes(os.urandom(100_000))
                case "refuses":
                    await web_socket.close(reason="nobody is here")
                case "breaks":
                    raise ValueError("a fault of the route")
                case "unknown":
                    raise ModelNotFoundError("there is no such model")
                case "http":
                    raise HTTPException(404)

        return [router]

    def error_forms(self) -> dict[str, ErrorForm]:
        return {"/echo": ErrorForm(lambda error, status, id: {"echo": error.message, "is": status})}


def echoing() -> Plugins:
    plugins = plugins_with(scripted=scripted(["Hello"]))
    plugins.wings("echo", Echo())
    return plugins


@contextmanager
def echo_server(
    keys: KeyStore | None = None, *, own_protocol: bool = True, **settings: Any
) -> Iterator[Server]:
    config = scripted_config(server={"max_request_bytes": LIMIT, **settings})
    with serve(config, echoing(), keys=keys, own_protocol=own_protocol) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with echo_server() as server:
        yield server


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    file = tmp_path / "keys.yml"
    keys_file.create(file, KEYS)
    return KeyStore(file)


@pytest.fixture
def guarded(keys: KeyStore) -> Iterator[Server]:
    with echo_server(keys, auth="required") as server:
        yield server


def opened(server: Server, path: str, key: str = "", **headers: str) -> ClientConnection:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    url = f"ws{server.url.removeprefix('http')}{path}"
    return connect(url, additional_headers=sent, proxy=None)


def refused(server: Server, path: str, *args: str, **headers: str) -> tuple[int, Any, Any]:
    """The status, the headers and the body that a handshake is answered with."""
    with pytest.raises(InvalidStatus) as caught:
        opened(server, path, *args, **headers)
    response = caught.value.response
    return response.status_code, response.headers, json.loads(response.body)


def closed(web_socket: ClientConnection) -> tuple[int | None, str]:
    """The code and the reason of the close that comes next."""
    with pytest.raises(ConnectionClosed) as caught:
        web_socket.recv(timeout=60)
    close = caught.value.rcvd
    return (close.code, close.reason) if close else (None, "")


def cards(server: Server, key: str = "") -> list[dict[str, Any]]:
    headers = {"x-api-key": key} if key else {}
    found: list[dict[str, Any]] = server.http.get("/v1/requests", headers=headers).json()["data"]
    return found


@pytest.mark.parametrize(
    "path", ["/v1/echo", "/echo/word", "/v1//echo", "/%761/echo", "/v1/echo?a=b"]
)
def test_an_echo(server: Server, path: str) -> None:
    with opened(server, path) as web_socket:
        for text in ("Hello", "x" * LIMIT):
            web_socket.send(text)
            assert web_socket.recv() == text


@pytest.mark.parametrize("path", ["/", "/v1/echo/", "/v1/models", "/echo", "/v1/responses"])
def test_other_paths_take_none(server: Server, path: str) -> None:
    status, headers, body = refused(server, path)
    assert status == 426
    assert headers["upgrade"] == "websocket"
    message = f"{path} takes no WebSocket; send a plain HTTP request"
    assert message == (body["echo"] if path == "/echo" else body["error"]["message"])


@pytest.mark.parametrize(
    "changed",
    [
        {"Sec-WebSocket-Version": "12"},
        {"Sec-WebSocket-Key": "short"},
        {"Content-Length": "2"},
        {"X-Long": "x" * 9000},
        {f"X-{number}": "" for number in range(130)},
    ],
)
def test_a_wrong_handshake(server: Server, changed: dict[str, str]) -> None:
    sent = {
        **{"Connection": "Upgrade", "Upgrade": "websocket"},
        **{"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"},
    }
    content = b"{}" if "Content-Length" in changed else None
    answer = server.http.request("GET", "/v1/echo", headers={**sent, **changed}, content=content)
    assert answer.status_code == 426
    assert "handshake of version 13" in answer.json()["error"]["message"]


def test_the_body_of_a_wrong_handshake_is_no_request(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    head = (
        "GET /v1/echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nContent-Length: 2\r\n\r\n"
    )
    for pieces in ((head + "{}",), (head, "{}")):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                connection.sendall(piece.encode())
            data = b"".join(iter(lambda: connection.recv(65536), b""))
        assert data.startswith(b"HTTP/1.1 426")
        assert data.count(b"HTTP/1.1 ") == 1


def test_a_handshake_before_the_answer_to_another_request(server: Server) -> None:
    """Else the answer would come in the middle of the WebSocket."""
    port = int(server.url.rpartition(":")[2])
    asked = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    upgrade = (
        "GET /v1/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close, Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(f"{asked}{upgrade}".encode())
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 426 " in answers


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "enginebay.server.http.web_socket_protocol", None)
    with echo_server() as server:
        status, _, body = refused(server, "/v1/echo")
    assert status == 426
    assert "a server that has the package websockets" in body["error"]["message"]


def test_keys(guarded: Server) -> None:
    for key in ("", "wrong"):
        status, headers, body = refused(guarded, "/v1/echo", key)
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert headers["x-request-id"]
        assert body["error"]["code"] == "invalid_api_key"
        assert "API key" in refused(guarded, "/echo/word", key)[2]["echo"]
    with opened(guarded, "/v1/echo", "key-of-anna") as web_socket:
        assert web_socket.response
        assert "x-ratelimit-limit-requests" in web_socket.response.headers


@pytest.mark.parametrize("auth", ["none", "admin", "required"])
@pytest.mark.parametrize("path", ["/v1/echo", "/v1/public"])
def test_pages_of_other_sites(keys: KeyStore, auth: str, path: str) -> None:
    with echo_server(keys, auth=auth, cors_origins=["https://mine.example"]) as server:
        needs_key = auth == "required" and path == "/v1/echo"
        status, _, body = refused(server, path, Origin="https://evil.example")
        assert status == (401 if needs_key else 403)
        assert needs_key or "'https://evil.example' may not call" in body["error"]["message"]
        for origin in (server.url, "https://mine.example", "app://obsidian.md"):
            if needs_key:
                assert refused(server, path, Origin=origin)[0] == 401
            else:
                opened(server, path, Origin=origin).close()
        if auth != "none":
            opened(server, path, "key-of-root", Origin="https://evil.example").close()


def test_with_the_protocol_of_another_server(keys: KeyStore) -> None:
    """The application checks WebSockets itself."""
    with echo_server(keys, own_protocol=False, auth="required") as server:
        assert refused(server, "/v1/models", "key-of-anna")[0] == 426
        assert refused(server, "/v1/echo")[0] == 401
        with opened(server, "/v1/echo", "key-of-anna") as web_socket:
            web_socket.send("Hello")
            assert web_socket.recv() == "Hello"


def test_names_of_other_sites(server: Server) -> None:
    """A page can have its own name lead to this server once it is loaded."""
    port = int(server.url.rpartition(":")[2])
    url = "ws://evil.example/v1/echo"
    with (
        socket.create_connection(("127.0.0.1", port), 60) as connection,
        pytest.raises(InvalidStatus) as caught,
    ):
        connect(url, sock=connection, proxy=None, additional_headers={"Origin": url})
    response = caught.value.response
    assert response.status_code == 403
    assert "the host 'evil.example' is not" in json.loads(response.body)["error"]["message"]


def test_limits_of_a_key(guarded: Server) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(opened(guarded, "/v1/echo", "key-of-anna"))
        status, headers, body = refused(guarded, "/echo/word", "key-of-anna")
        assert (status, body["is"]) == (429, 429)
        assert headers["retry-after"]
    guarded.settle()
    opened(guarded, "/v1/echo", "key-of-anna").close()
    guarded.settle()
    status, _, body = refused(guarded, "/v1/echo", "key-of-anna")
    assert status == 429
    assert "limited to 3 per minute" in body["error"]["message"]


def test_it_is_a_running_request(guarded: Server) -> None:
    with opened(guarded, "/v1/echo", "key-of-anna", X_Request_Id="mine") as web_socket:
        assert web_socket.response
        assert web_socket.response.headers["x-request-id"] == "mine"
        [card] = cards(guarded, "key-of-anna")
        assert (card["id"], card["route"], card["key"]) == ("mine", "GET /v1/echo", "anna")
        path, headers = "/v1/requests/mine/cancel", {"x-api-key": "key-of-anna"}
        assert guarded.http.post(path, headers=headers).status_code == 200
        assert closed(web_socket) == (1008, "the request was cancelled")
    guarded.settle()
    assert cards(guarded, "key-of-root") == []


def test_a_revoked_key(guarded: Server, keys: KeyStore, tmp_path: Path) -> None:
    shared = guarded.app.state.services

    async def look() -> None:
        await keys.look()
        cancel_revoked(keys.known(), shared.serving.requests, shared.models)

    with opened(guarded, "/v1/echo", "key-of-anna") as web_socket:
        keys_file.remove(tmp_path / "keys.yml", "anna")
        guarded.run(look())
        assert closed(web_socket) == (1008, "the API key of anna is not valid any more")
    assert refused(guarded, "/v1/echo", "key-of-anna")[0] == 401


def test_the_log_and_the_metrics(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        with opened(server, "/echo/word", "key-in-a-header") as web_socket:
            web_socket.send("a secret")
            web_socket.recv()
        refused(server, "/echo/ends/refuses")
        server.settle()
    own = [each.getMessage() for each in caplog.records if each.name != "websockets.client"]
    assert not [each for each in own if "key-in-a-header" in each or "a secret" in each]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    lines = [each for each in caplog.records if each.name == "enginebay.access"]
    found = [(each.method, each.path, each.status) for each in lines]  # type: ignore[attr-defined]
    assert found == [("GET", "/echo/word", 101), ("GET", "/echo/ends/refuses", 403)]
    assert all(each.duration_s > 0 for each in lines)  # type: ignore[attr-defined]
    metrics = server.http.get("/metrics").text
    assert 'method="GET",model_name="",route="/echo/{word}",status="101"' in metrics


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("refuses", 403, "nobody is here"),
        ("returns", 403, "the route has not accepted this WebSocket"),
        ("unknown", 404, "there is no such model"),
        ("http", 404, "there is no route GET /echo/ends/http"),
        ("breaks", 500, "an internal error; see the server's log"),
    ],
)
def test_before_it_is_accepted(server: Server, how: str, status: int, said: str) -> None:
    found, headers, body = refused(server, f"/echo/ends/{how}")
    assert headers["x-request-id"]
    assert (found, body) == (status, {"echo": said, "is": status})
    status, _, body = refused(server, "/v1/number?number=one")
    assert status == 400
    assert body["error"]["param"] == "number"


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("refuses", 1000, "nobody is here"),
        ("returns", 1000, ""),
        ("unknown", 1011, "there is no such model"),
        ("http", 1011, "an internal error"),
        ("breaks", 1011, "an internal error; see the server's log"),
    ],
)
def test_after_it_is_accepted(
    server: Server, caplog: pytest.LogCaptureFixture, how: str, code: int, reason: str
) -> None:
    with opened(server, f"/echo/ends/{how}?accept=true") as web_socket:
        assert closed(web_socket) == (code, reason)
    server.settle()
    logged = [each for each in caplog.records if each.exc_info]
    assert len(logged) == (how == "breaks")


@pytest.mark.parametrize("size", [LIMIT + 1, 20_000_000])
@pytest.mark.parametrize("fragments", [False, True])
def test_a_message_that_is_too_large(server: Server, size: int, fragments: bool) -> None:
    with opened(server, "/v1/echo") as web_socket:
        with suppress(ConnectionClosed):
            web_socket.send(["x" * (size // 2)] * 3 if fragments else "x" * size)
        assert closed(web_socket)[0] == 1009


def test_slow_clients() -> None:
    """One does not send its whole handshake, and one does not read."""
    with echo_server(request_timeout=SHORT) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.sendall(b"GET /v1/echo HTTP/1.1\r\nUpgrade: websocket\r\nConnection: ")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 408 ")
        with opened(server, "/echo/ends/floods?accept=true") as web_socket:
            server.settle()
            assert len(server.app.state.services.serving.requests) == 0
            web_socket.close_socket()


def test_behind_a_proxy(keys: KeyStore) -> None:
    proxied = {"root_path": "/llm", "trusted_proxies": ["127.0.0.1"]}
    with echo_server(keys, auth="required", **proxied) as server:
        for path in ("/llm/v1/echo", "/v1/echo"):
            opened(server, path, "key-of-anna", X_Forwarded_Proto="https").close()
        assert refused(server, "/llm/nowhere", "key-of-anna")[0] == 426


@pytest.mark.parametrize("begun", [False, True])
def test_when_the_server_stops(begun: bool) -> None:
    """One for which no engine works is closed at once, another one after its time."""
    timeout = 1 if begun else 600
    settings = {"shutdown_timeout": timeout, "auth": "none"}
    app = create_app(scripted_config(server=settings), echoing())
    with ExitStack() as stack:
        listening = stack.enter_context(listen("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/echo"
        with served_on(listening, app):
            web_socket = stack.enter_context(connect(url, proxy=None))
            [request] = app.state.services.serving.requests
            request._started = begun
        assert closed(web_socket) == (
            1001,
            "the server is shutting down; try again when it is back up",
        )
