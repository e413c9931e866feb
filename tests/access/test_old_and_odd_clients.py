"""Clients that speak HTTP/1.0, ask for another protocol, or leave."""

import json
import logging
import socket
from collections.abc import Iterator

import httpx2
import pytest

from enginebay import RouteRequest
from tests.support import Server, plugins_with, scripted, scripted_config, serve

BODY = {"prompt": "x", "stream": True, "max_tokens": 9}
HI = {"role": "user", "content": "hi"}


async def read(request: RouteRequest) -> str:
    """A route of a plugin, which reads a body as it is."""
    return "read"


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(["a", "b", "c"]))
    plugins.routes("POST", "/plugin", read)
    settings = {"api_keys": ["k" * 20], "second_port": None}
    with serve(scripted_config(server=settings), plugins) as running:
        yield running


def connect(server: Server) -> socket.socket:
    url = httpx2.URL(server.url)
    assert url.port
    return socket.create_connection((url.host, url.port), timeout=60)


def sent(server: Server, head: str, body: bytes = b"") -> tuple[str, bytes]:
    """The head and the body of an answer, which ends with the connection."""
    with connect(server) as connection:
        key = f"Authorization: Bearer {'k' * 20}\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}\r\nHost: localhost\r\n{key}\r\n".encode() + body)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    start, _, rest = data.partition(b"\r\n\r\n")
    return start.decode().lower(), rest


@pytest.mark.wing("kobold", "messages", "ollama", "responses")
@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/completions", BODY, b"data: [DONE]\n\n"),
        ("/v1/chat/completions", {"messages": [HI], "stream": True}, b"data: [DONE]\n\n"),
        (
            "/v1/messages",
            {"model": "scripted", "messages": [HI], "stream": True, "max_tokens": 9},
            b"}\n\n",
        ),
        ("/v1/responses", {"input": "x", "stream": True}, b"}\n\n"),
        ("/api/chat", {"model": "scripted", "messages": [HI]}, b"}\n"),
        ("/api/extra/generate/stream", {"prompt": "x"}, b"}\n\n"),
    ],
)
def test_a_stream_to_a_client_of_http_1_0(
    server: Server, path: str, body: dict[str, object], last: bytes
) -> None:
    """WIRE-5: its events are not in chunks, and it ends with the connection."""
    for more in ("", "\r\nConnection: keep-alive"):
        head, data = sent(server, f"POST {path} HTTP/1.0{more}", json.dumps(body).encode())
        assert head.startswith("http/1.1 200 "), data
        assert "transfer-encoding" not in head
        assert "connection: close" in head
        assert data.startswith((b"data: {", b"event: ", b'{"'))
        assert data.endswith(last)
        assert b"\r\n" not in data


def test_other_answers_to_a_client_of_http_1_0(server: Server) -> None:
    for request in ("GET /v1/models", "GET /page/app.js", "GET /nothing", "HEAD /v1/models"):
        head, data = sent(server, f"{request} HTTP/1.0")
        assert "transfer-encoding" not in head
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        assert len(data) == (0 if request.startswith("HEAD") else length)


@pytest.mark.wing("messages", "ollama", "page", "responses")
@pytest.mark.parametrize(
    "path",
    ["/v1/responses", "/v1/realtime", "/", "/nowhere", "/v1/messages", "/api/chat", "/plugin"],
)
def test_a_websocket(server: Server, path: str) -> None:
    """WIRE-7: Codex then asks by POST at once; a 403 would have it try seven times."""
    asked = {"Connection": "keep-alive, Upgrade", "Upgrade": "websocket"}
    for more in (
        {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"},
        {},
    ):
        answer = server.http.get(path, headers={**asked, **more})
        assert answer.status_code == 426
        assert answer.headers["upgrade"] == "websocket"
        body = answer.json()
        error = body["error"] if path == "/api/chat" else body["error"]["message"]
        assert error == f"{path} takes no WebSocket; send a plain HTTP request"
        assert ("request_id" in body) is (path == "/v1/messages")
    assert server.http.get("/health").status_code == 200  # on the same connection


def test_http_2_may_be_ignored(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Java's client offers it with its first request on each connection. RFC 9110, 7.8"""
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": ""}
    for more in (headers, {}):
        answer = server.http.get("/v1/models", headers={**more, "x-api-key": "k" * 20})
        assert answer.status_code == 200
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/messages", "/api/chat", "/plugin", "/none"]
)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_client_that_leaves_while_it_sends(
    server: Server, caplog: pytest.LogCaptureFixture, path: str, encoding: str
) -> None:
    """SEC-12: that is no error of the server."""
    key = f"Authorization: Bearer {'k' * 20}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{key}\r\nContent-Encoding: {encoding}\r\n"
    for length in ("Content-Length: 100000", "Transfer-Encoding: chunked"):
        for body in (b"", b'5\r\n{"a":'):
            with connect(server) as connection:
                connection.sendall(f"{head}{length}\r\n\r\n".encode() + body)
    with caplog.at_level(logging.INFO):
        server.settle()
    assert not [each for each in caplog.records if each.exc_info or each.levelno > logging.INFO]
