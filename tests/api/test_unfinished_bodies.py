"""SEC-9: how much of their bodies clients can leave with the server before they end them."""

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import httpx2
import pytest

from enginebay.server.access import keys_file
from enginebay.server.access.key_store import KeyStore
from enginebay.server.http.body_room import BodyRoom
from tests.support import Server, plugins_with, scripted, scripted_config, serve

MOST = 1 << 20
BODY = json.dumps({"prompt": "x" * (MOST - 100)}).encode()
SMALL = json.dumps({"prompt": "x"}).encode()
KEYS = {name: f"key-of-{name}-which-is-long" for name in ("anna", "ben", "carl")}


class Sender:
    """A client that asks whether it may send its body, as curl does with a large one."""

    def __init__(self, server: Server, key: str, body: bytes = BODY, *more: str) -> None:
        url = httpx2.URL(server.url)
        assert url.port
        self._socket = socket.create_connection((url.host, url.port), timeout=60)
        self._body = body
        lines = [
            "POST /v1/completions HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {KEYS[key]}",
            "Expect: 100-continue",
            *(more or [f"Content-Length: {len(body)}"]),
        ]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def status(self) -> int:
        """The status of the next answer; 100 means that the body may be sent."""
        return int(self._socket.recv(65536).split()[1])

    def has_no_answer(self) -> bool:
        """Whether nothing has been sent to it."""
        self._socket.setblocking(False)
        try:
            with suppress(BlockingIOError):
                return not self._socket.recv(1, socket.MSG_PEEK)
            return True
        finally:
            self._socket.settimeout(60)

    def send(self, part: slice = slice(None)) -> None:
        """Send this part of the body."""
        self._socket.sendall(self._body[part])

    def hang_up(self) -> None:
        """Leave."""
        self._socket.close()


@contextmanager
def running(folder: Path, timeout: float = 60.0) -> Iterator[Server]:
    file = folder / "keys.yml"
    keys_file.create(file, [keys_file.new_entry(name, key) for name, key in KEYS.items()])
    settings = {"max_request_bytes": MOST, "request_timeout": timeout, "keys_file": str(file)}
    plugins = plugins_with(scripted=scripted(["ok"], context_length=MOST))
    with serve(scripted_config(server=settings), plugins, keys=KeyStore(file)) as server:
        yield server


def test_two_large_bodies_of_a_key_arrive_at_once(tmp_path: Path) -> None:
    """The next begins when one has ended, or its client has left."""
    with running(tmp_path) as server:
        with Sender(server, "anna") as first, Sender(server, "anna") as second:
            assert (first.status(), second.status()) == (100, 100)
            first.send(slice(MOST // 2))
            with Sender(server, "anna") as third, Sender(server, "anna") as fourth:
                with Sender(server, "anna", SMALL) as small:
                    assert small.status() == 100
                    small.send()
                    assert small.status() == 200
                assert third.has_no_answer()
                first.send(slice(MOST // 2, None))
                assert first.status() == 200
                assert third.status() == 100
                assert fourth.has_no_answer()
                second.hang_up()
                assert fourth.status() == 100
        with Sender(server, "anna") as later:
            assert later.status() == 100


def test_one_key_leaves_room_for_others(tmp_path: Path) -> None:
    """All keys together have room for four."""
    with running(tmp_path) as server:
        begun = [Sender(server, name) for name in ("anna", "anna", "ben", "ben")]
        assert [each.status() for each in begun] == [100] * 4
        with Sender(server, "carl") as waiting:
            assert server.http.get("/health").status_code == 200
            assert waiting.has_no_answer()
            begun[0].hang_up()
            assert waiting.status() == 100
        for each in begun:
            each.hang_up()


def test_a_body_without_a_length_needs_room_as_soon_as_it_is_large(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        packed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
        with (
            Sender(server, "anna") as one,
            Sender(server, "anna") as two,
            Sender(server, "anna", packed, "Transfer-Encoding: chunked") as chunked,
        ):
            assert [each.status() for each in (one, two, chunked)] == [100] * 3
            chunked.send()
            assert server.http.get("/health").status_code == 200
            assert chunked.has_no_answer()
            one.hang_up()
            assert chunked.status() == 200


def test_a_compressed_body_needs_room_for_what_it_is(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        packed = gzip.compress(BODY)
        more = (f"Content-Length: {len(packed)}", "Content-Encoding: gzip")
        with (
            Sender(server, "anna") as one,
            Sender(server, "anna") as two,
            Sender(server, "anna", packed, *more) as compressed,
        ):
            assert [each.status() for each in (one, two, compressed)] == [100] * 3
            compressed.send()
            assert server.http.get("/health").status_code == 200
            assert compressed.has_no_answer()
            one.hang_up()
            assert compressed.status() == 200


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    """A client that sends no more loses its room, and who waits in vain is told so."""
    with running(tmp_path, timeout=1.0) as server:
        stuck = [Sender(server, "anna") for _ in range(2)]
        assert [each.status() for each in stuck] == [100, 100]
        with Sender(server, "anna") as waiting:
            assert {each.status() for each in stuck} == {408}
            assert waiting.status() in (100, 503)
        for each in stuck:
            each.hang_up()


@pytest.mark.parametrize("sizes", [[1], [70, 70, 70], [100, 100, 100, 1], [10] * 30])
def test_room_is_given_back_whole(sizes: list[int]) -> None:
    """However many wait, and whoever gives up."""

    async def all_of_them() -> None:
        room = BodyRoom(100)
        tasks = [asyncio.create_task(room.take(f"{n % 3}", size)) for n, size in enumerate(sizes)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                (await task).shrink(0)
        rest = [await asyncio.wait_for(room.take(name, 100), 60) for name in ("a", "a", "b", "b")]
        assert [share.size for share in rest] == [100] * 4

    asyncio.run(all_of_them())
