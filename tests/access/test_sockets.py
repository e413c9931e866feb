"""Requests as no client library sends them: too slow, too large, never ending."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2
import pytest

from enginebay.server.app import create_app
from enginebay.server.http.protocol import MAX_PIPELINED
from enginebay.server.http.request_limit import MAX_HEADERS
from enginebay.server.http.sockets import listen
from tests.support import plugins_with, scripted, scripted_config, served_on

SHORT = 0.3
"""A time-out, in seconds, that a test can wait for."""


@contextmanager
def serving(timeout: float) -> Iterator[int]:
    """A server as `enginebay serve` runs it; its port."""
    settings = {"request_timeout": timeout, "max_request_bytes": 100_000}
    app = create_app(scripted_config(server=settings), plugins_with(scripted=scripted(["ok"])))

    with listen("127.0.0.1", 0) as listening, served_on(listening, app):
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(60) as port:
        yield port


@pytest.fixture(scope="module")
def hurried() -> Iterator[int]:
    with serving(SHORT) as port:
        yield port


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


def answer(connection: socket.socket) -> str:
    """All that the server sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionError:
        pass  # it was closed while there was more to read for the server
    return b"".join(parts).decode()


def assert_others_are_served(port: int) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    assert httpx2.post(url, json=body, timeout=60).status_code == 200


def head(*headers: str, method: str = "GET", path: str = "/health") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    return "\r\n".join(lines).encode()


CHAT = {"method": "POST", "path": "/v1/chat/completions"}


def test_a_connection_on_which_nothing_comes(hurried: int) -> None:
    with connected(hurried) as connection:
        assert_others_are_served(hurried)
        assert answer(connection) == ""


def test_headers_that_do_not_end(hurried: int) -> None:
    with connected(hurried) as connection:
        connection.sendall(head("X-A: b"))
        assert_others_are_served(hurried)
        assert answer(connection).startswith("HTTP/1.1 408 ")


def test_headers_that_come_drop_by_drop(hurried: int) -> None:
    """Each byte gives no new time."""
    with connected(hurried) as connection:
        connection.settimeout(SHORT / 10)
        connection.sendall(head())
        sent, came = 0, b""
        while not came:
            try:
                connection.sendall(b"\r\nX-A: b")
                sent += 1
                came = connection.recv(1000)
            except TimeoutError:
                continue
        assert came.startswith(b"HTTP/1.1 408 ")
        assert 1 <= sent <= 100


def test_the_next_requests_headers(hurried: int) -> None:
    with connected(hurried) as connection:
        connection.sendall(head() + b"\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(head())
        assert "HTTP/1.1 408 " in answer(connection)


def test_a_body_that_does_not_end(hurried: int) -> None:
    with connected(hurried) as connection:
        connection.sendall(head("Content-Length: 100", **CHAT) + b'\r\n\r\n{"messages"')
        assert_others_are_served(hurried)
        text = answer(connection)
        assert text.startswith("HTTP/1.1 408 ")
        assert "the body has not arrived within 0.3 seconds" in text
        assert '"type":"invalid_request_error"' in text


def test_a_chunked_body_that_does_not_end(hurried: int) -> None:
    with connected(hurried) as connection:
        connection.sendall(head("Transfer-Encoding: chunked", **CHAT) + b"\r\n\r\n1\r\n{\r\n")
        assert answer(connection).startswith("HTTP/1.1 408 ")


def test_the_rest_of_a_body_that_was_refused(hurried: int) -> None:
    """It is not waited for without an end."""
    with connected(hurried) as connection:
        connection.sendall(head("Content-Length: 999999", **CHAT) + b"\r\n\r\n{")
        text = answer(connection)
        assert text.startswith("HTTP/1.1 413 ")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "flood",
    [
        b"X-A: " + b"b" * 2 * MAX_HEADERS,
        b"\r\n".join(b"X-%d: y" % n for n in range(10_000)),
    ],
    ids=["one", "many"],
)
def test_too_many_headers(port: int, flood: bytes, at_once: bool) -> None:
    """Whether they come to an end or not."""
    with connected(port) as connection:
        try:
            if at_once:
                connection.sendall(head() + b"\r\n" + flood + b"\r\n\r\n")
            else:
                connection.sendall(head() + b"\r\n" + flood)
        except ConnectionError:
            pass
        assert "HTTP/1.1 431 " in connection.recv(1000).decode()
    assert_others_are_served(port)


@pytest.mark.parametrize("second", ["Host: localhost", "hOST: evil.example", "Host:"])
def test_two_hosts(port: int, second: str) -> None:
    """RFC 9112, 3.2: whoever reads the other one of them, a proxy say, means another request."""
    with connected(port) as connection:
        connection.sendall(head(second) + b"\r\n\r\n" + head("Connection: close") + b"\r\n\r\n")
        text = answer(connection)
    assert text.startswith("HTTP/1.1 400 ")
    assert text.count("HTTP/1.1") == 1
    assert "more than one Host header" in text
    assert '"type": "invalid_request_error"' in text
    assert_others_are_served(port)


def test_a_path_that_does_not_end(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET /" + b"a" * 2 * MAX_HEADERS)
        assert "HTTP/1.1 431 " in connection.recv(1000).decode()


def test_as_many_headers_as_are_allowed(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(head("X-A: " + "b" * (MAX_HEADERS - 1000)) + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_what_came_before_headers_is_none_of_them(port: int) -> None:
    """A body, and the first of the next request's headers right behind it."""
    body = b" " * MAX_HEADERS + b"{}"
    with connected(port) as connection:
        start = head(f"Content-Length: {len(body)}", **CHAT)
        connection.sendall(start + b"\r\n\r\n" + body + head())
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
        connection.sendall(b"\r\nConnection: close\r\n\r\n")
        assert "HTTP/1.1 200 " in answer(connection)


def test_requests_behind_each_other(port: int) -> None:
    requests = (head() + b"\r\n\r\n") * MAX_PIPELINED
    with connected(port) as connection:
        connection.sendall(requests + head("Connection: close") + b"\r\n\r\n")
        assert answer(connection).count("HTTP/1.1 200 ") == MAX_PIPELINED + 1


def test_too_many_requests_behind_each_other(port: int) -> None:
    """They would all be kept."""
    with connected(port) as connection:
        with suppress(ConnectionError):
            connection.sendall((head() + b"\r\n\r\n") * 20 * MAX_PIPELINED)
        assert answer(connection).count("HTTP/1.1 ") <= 2 * MAX_PIPELINED
    assert_others_are_served(port)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large(port: int, chunked: bool) -> None:
    with connected(port) as connection:
        if chunked:
            start = head("Transfer-Encoding: chunked", **CHAT)
            connection.sendall(start + b"\r\n\r\n20000\r\n" + b"a" * 0x20000 + b"\r\n0\r\n\r\n")
        else:
            connection.sendall(head("Content-Length: 200000", **CHAT) + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert_others_are_served(port)


def test_answers_that_nobody_reads(hurried: int) -> None:
    """The connection is closed, and with it ends what waits to be sent."""
    with connected(hurried) as connection:
        connection.sendall((head(path="/docs/assets/swagger-ui-bundle.js") + b"\r\n\r\n") * 50)
        for _ in range(2000):
            text = httpx2.get(f"http://127.0.0.1:{hurried}/metrics", timeout=60).text
            if "enginebay:http_requests_in_progress 1.0" in text:  # this one
                break
        else:
            pytest.fail("it still waits")
        with suppress(ConnectionError):
            while connection.recv(1 << 20):
                pass
    assert_others_are_served(hurried)


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\x00" * 100, b"POST / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http(port: int, junk: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(junk)
        text = answer(connection)
        assert "HTTP/1.1 400 " in text
        assert json.loads(text.partition("\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert_others_are_served(port)
