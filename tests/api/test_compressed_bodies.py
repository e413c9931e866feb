"""WIRE-3: bodies that clients send compressed."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from enginebay import RouteRequest
from enginebay.server.http.content_encoding import (
    SUPPORTED,
    DamagedBodyError,
    TooLargeError,
    decoded,
    encodings_of,
)
from tests.api.test_body_limits import PATHS
from tests.support import Server, plugins_with, scripted, scripted_config, serve

MOST = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZip": lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "zstd": zstandard.compress,
    "ZSTD": lambda data: zstandard.compress(data[:7]) + zstandard.compress(data[7:]),
    "identity": bytes,
}
CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hällo"}]}).encode()


async def echo(request: RouteRequest) -> Any:
    """A plugin's route, which reads its body as it is."""
    return {"body": request.body.decode(), "encoded": "content-encoding" in request.headers}


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(["ok"]))
    plugins.routes("POST", "/echo", echo)
    config = scripted_config(server={"max_request_bytes": MOST})
    with serve(config, plugins) as running:
        yield running


def post(server: Server, path: str, content: Any, encoding: str) -> Any:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    return server.http.post(path, content=content, headers=headers)


@pytest.mark.parametrize("encoding", ENCODE)
def test_each_encoding_is_read(server: Server, encoding: str) -> None:
    """Sent whole or in chunks."""
    packed = ENCODE[encoding](BODY)
    answers = [
        post(server, CHAT, packed, encoding),
        post(server, CHAT, (bytes([byte]) for byte in packed), encoding),
    ]
    for answer in answers:
        assert answer.json()["choices"][0]["message"]["content"] == "ok"


def test_encodings_on_top_of_each_other(server: Server) -> None:
    """They are undone from the last to the first, whether one header names them or several."""
    packed = zlib.compress(zstandard.compress(gzip.compress(BODY)))
    for headers in (
        [("Content-Encoding", "gzip, zstd,deflate")],
        [("Content-Encoding", "gzip, zstd"), ("content-encoding", "deflate")],
    ):
        answer = server.http.post(CHAT, content=packed, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize("path", PATHS)
def test_every_route_reads_them(server: Server, path: str) -> None:
    """A body of a wrong kind is refused as such, not as bytes that make no sense."""
    path = path.replace("{model_id:path}", "x")
    packed = post(server, path, gzip.compress(b'"text"'), "gzip")
    plain = post(server, path, b'"text"', "")
    assert packed.status_code == plain.status_code
    assert {**packed.json(), "request_id": ""} == {**plain.json(), "request_id": ""}


def test_a_route_of_a_plugin_gets_a_plain_body(server: Server) -> None:
    answer = post(server, "/echo", gzip.compress(b"text"), "gzip")
    assert answer.json() == {"body": "text", "encoded": False}


@pytest.mark.wing("messages", "ollama")
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/nowhere"])
@pytest.mark.parametrize(
    "encoding", ["br", "gzip, br", "compress", "utf-8", ",".join(["gzip"] * 9)]
)
def test_other_encodings_are_refused(server: Server, path: str, encoding: str) -> None:
    """In the form of the API's errors, with those that the server reads."""
    answer = post(server, path, b"{}", encoding)
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
    error = answer.json()["error"]
    message = error if path.startswith("/api") else error["message"]
    assert message.endswith("send the body as it is, or as gzip, deflate, zstd")
    assert ("type" in answer.json()) is (path == "/v1/messages")


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_the_limit_counts_what_is_decoded(server: Server, encoding: str) -> None:
    """A body that is small on the wire, and large behind it, is never held in memory."""
    packed = ENCODE[encoding](bytes(100 * MOST))
    assert len(packed) < MOST
    answer = post(server, CHAT, packed, encoding)
    assert answer.status_code == 413
    assert f"larger than {MOST} bytes" in answer.text
    twice = post(server, CHAT, gzip.compress(packed), f"{encoding}, gzip")
    assert twice.status_code == 413
    almost = json.dumps({"prompt": "a" * (MOST - 20)}).encode()
    assert "larger" not in post(server, "/v1/completions", ENCODE[encoding](almost), encoding).text


def test_other_limits_count_what_is_decoded(server: Server) -> None:
    many = json.dumps({"prompt": [1] * 600_000}).encode()
    with serve(scripted_config(), plugins_with(scripted=scripted(["ok"]))) as roomy:
        answer = post(roomy, "/v1/completions", gzip.compress(many), "gzip")
        assert answer.status_code == 400
        assert "max_request_values" in answer.text
    assert "is not UTF-8" in post(server, CHAT, gzip.compress("{}".encode("utf-16")), "gzip").text


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_a_body_that_is_not_what_it_says(server: Server, encoding: str) -> None:
    packed = ENCODE[encoding](BODY)
    for wrong in (packed[:-1], packed[:5], packed + b"x", BODY, b"\0"):
        answer = post(server, CHAT, wrong, encoding)
        assert answer.status_code == 400
        assert f"the body is not valid {encoding}" in answer.json()["error"]["message"]


def test_no_body_needs_no_encoding(server: Server) -> None:
    headers = {"Content-Encoding": "br", "Content-Length": "0"}
    assert server.http.get("/v1/models", headers=headers).status_code == 200


def test_parts_without_content_cost_little() -> None:
    """Each member of gzip, and each frame of zstd, has its price."""
    for encoding in ("gzip", "zstd"):
        packed = ENCODE[encoding](b"")
        assert decoded(packed * 1000, [encoding], 10) == b""
        with pytest.raises(DamagedBodyError, match="more behind its end"):
            decoded(packed * 1001, [encoding], 10)


@given(
    data=st.binary(max_size=300), times=st.integers(1, 3000), encoding=st.sampled_from(SUPPORTED)
)
def test_what_was_encoded_is_decoded(data: bytes, times: int, encoding: str) -> None:
    whole = data * times
    packed = raw_deflate(whole) if encoding == "deflate" and times % 2 else ENCODE[encoding](whole)
    assert decoded(
        packed, encodings_of([(b"content-encoding", encoding.encode())]), len(whole)
    ) == (whole)
    if whole:
        with pytest.raises(TooLargeError):
            decoded(packed, [encoding], len(whole) - 1)
        with pytest.raises(DamagedBodyError):
            decoded(packed[: len(packed) // 2], [encoding], len(whole))
