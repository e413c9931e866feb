"""Servers that send too much, too slowly, or nonsense: MEDIA-27, MM-6."""

import asyncio
import gzip
import socket
import threading
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import InvalidRequestError
from enginebay.media.fetch import Fetcher
from enginebay.media.policy import ByteLimit
from tests.effort import examples
from tests.media.origin import Answer, Names, Visit, ok, origin, policy, redirect
from tests.media.samples import PNG

MOST = 100_000


async def refusal(answer: Answer, *, too_slow: int = 0) -> str:
    """What is said of an answer, of which not more was read than may be.

    With `too_slow`, the time to fetch it ends once so many requests have arrived, and not before.
    """
    limit = ByteLimit(MOST, "the picture has")
    timeouts: list[asyncio.Timeout] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        timeouts.append(asyncio.Timeout(asyncio.get_running_loop().time() + seconds))
        return timeouts[-1]

    async with origin(a=answer) as served:
        fetcher = Fetcher(policy(seconds=60.0), resolve=Names())
        with closing(fetcher), pytest.MonkeyPatch.context() as patched:
            patched.setattr(asyncio, "timeout", timeout)
            getting = asyncio.ensure_future(fetcher.get(served.url("a"), limit))
            for _ in range(too_slow):
                await served.arrived.wait()
                served.arrived.clear()
            if too_slow:
                timeouts[0].reschedule(0)
            with pytest.raises(InvalidRequestError) as caught:
                await getting
        assert limit.taken <= MOST
        await served.left.wait()
    return caught.value.message


async def endless(visit: Visit, data: bytes = b"x" * 65536) -> None:
    while not visit.writer.is_closing():
        visit.writer.write(data)
        await visit.writer.drain()


async def endless_body(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await endless(visit)


async def endless_chunks(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await endless(visit, b"3e8\r\n" + b"x" * 1000 + b"\r\n")


async def endless_small_chunks(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await endless(visit, b"1\r\nx\r\n" * 1000)


async def endless_header(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    await endless(visit)


async def endless_headers(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\n")
    await endless(visit, b"X: y\r\n" * 1000)


async def endless_trailers(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    await endless(visit, b"X: y\r\n" * 1000)


async def endless_continues(visit: Visit) -> None:
    while not await visit.is_over(0.001):
        visit.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 10)


async def silent(visit: Visit) -> None:
    await visit.is_over()


async def headers_then_silent(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    await visit.is_over()


async def trickling_body(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not await visit.is_over(0.01):
        visit.writer.write(b"x")


async def trickling_headers(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not await visit.is_over(0.01):
        visit.writer.write(b"x")


TOO_MUCH: dict[str, Answer] = {
    "a body without end": endless_body,
    "chunks without end": endless_chunks,
    "a length above the cap": ok(b"x", length=MOST + 1),
    "a length of 20 digits": ok(b"x", length="9" * 20),
    "a body above the cap": ok(b"x" * (MOST + 1)),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_attack_too_much(name: str) -> None:
    assert await refusal(TOO_MUCH[name]) == f"the picture has more than {MOST} bytes"


TOO_SLOW = {
    "nothing at all": silent,
    "nothing after the headers": headers_then_silent,
    "a byte at a time": trickling_body,
    "a header, a byte at a time": trickling_headers,
    "interim answers without end": endless_continues,
}


@pytest.mark.parametrize("name", TOO_SLOW)
async def test_attack_too_slow(name: str) -> None:
    """REAL-15: by a clock of the test, which starts no deadline before the request is there."""
    said = await refusal(TOO_SLOW[name], too_slow=1)
    assert said == "fetching it took longer than 60 seconds (server.media_timeout)"


async def test_attack_resolver_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds threads of its own, and neither the event loop nor those of others."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(10) and [])
    before = threading.active_count()
    fetcher = Fetcher(policy(seconds=0.1, fetches=2))
    gets = (fetcher.get("http://slow.example/", ByteLimit(MOST, "it has")) for _ in range(4))
    try:
        said = await asyncio.gather(*gets, return_exceptions=True)
        assert threading.active_count() <= before + 2
    finally:
        over.set()
        fetcher.close()
    assert {str(error)[:25] for error in said} == {"fetching it took longer t"}


async def test_attack_redirects_share_the_time() -> None:
    answers = iter([redirect("a"), redirect("a")])

    async def slow(visit: Visit) -> None:
        if answer := next(answers, None):
            visit.writer.write(answer)
        else:
            await silent(visit)

    assert "took longer than 60 seconds" in await refusal(slow, too_slow=3)


WRONG: dict[str, Answer] = {
    "chunks of a byte without end": endless_small_chunks,
    "a header without end": endless_header,
    "headers without end": endless_headers,
    "trailers without end": endless_trailers,
    "no HTTP": b"220 mail.example ESMTP\r\n\r\n",
    "nothing": b"\r\n\r\n",
    "two lengths": ok(PNG, "Content-Length: 5"),
    "a length that is no number": ok(b"x", length="0x10"),
    "a negative length": ok(b"x", length=-5),
    "a length of 5,000 digits": ok(b"x", length="9" * 5000),
    "a chunk of no size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
    "a chunk of a huge size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"f" * 30
    + b"\r\n",
    "another transfer encoding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    "status 404": ok(PNG, status="404 Not Found"),
    "status 206": ok(PNG, status="206 Partial Content"),
    "status 204": ok(b"", status="204 No Content"),
    "status 304": ok(b"", status="304 Not Modified"),
    "status 101": ok(b"", "Upgrade: x", "Connection: Upgrade", status="101 Switching Protocols"),
    "status 401": ok(b"", "WWW-Authenticate: Basic", status="401 Unauthorized"),
    "gzip": ok(gzip.compress(bytes(10_000_000)), "Content-Encoding: gzip"),
    "gzip in capitals": ok(gzip.compress(PNG), "CONTENT-ENCODING: GZIP"),
    "brotli": ok(b"x", "Content-Encoding: br"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_attack_answer(name: str) -> None:
    assert "it cannot be fetched" in await refusal(WRONG[name])


async def test_attack_length_that_lies() -> None:
    """Of a shorter body nothing is used; what comes after the length is not read."""

    async def cut(visit: Visit) -> None:
        visit.writer.write(ok(PNG, length=len(PNG) + 10))
        visit.writer.write_eof()

    assert "it cannot be fetched" in await refusal(cut)
    async with origin(a=ok(PNG + b"x" * MOST, length=len(PNG))) as served:
        with closing(Fetcher(policy(), resolve=Names())) as fetcher:
            assert await fetcher.get(served.url("a"), ByteLimit(MOST, "it has")) == PNG


async def test_attack_nobody_there() -> None:
    async with origin() as served:
        pass
    fetcher = Fetcher(policy(), resolve=Names())
    with closing(fetcher), pytest.raises(InvalidRequestError, match="the connection failed"):
        await fetcher.get(served.url("a"), ByteLimit(MOST, "it has"))


async def test_attack_connection_closed_at_once() -> None:
    async def close(visit: Visit) -> None:
        visit.writer.transport.abort()

    assert "the connection failed" in await refusal(close)


@examples(100)
@given(st.lists(st.sampled_from([
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Location: http://[\r\n", b"Location: \xff\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"\0",
    b"\xff\xfe", b"Content-Encoding: identity\r\n", b" folded\r\n", b": \r\n", b"HTTP/2 200\r\n",
]) | st.binary(max_size=20), max_size=12))  # fmt: skip
async def test_whatever_a_server_says_is_a_body_or_a_400(pieces: list[bytes]) -> None:
    async def say(visit: Visit) -> None:
        visit.writer.write(b"".join(pieces))
        visit.writer.write_eof()

    async with origin(a=say) as served:
        fetcher = Fetcher(policy(seconds=5), resolve=Names())
        with closing(fetcher), suppress(InvalidRequestError):
            assert len(await fetcher.get(served.url("a"), ByteLimit(9, "it has"))) <= 9
