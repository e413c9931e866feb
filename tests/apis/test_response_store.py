"""Stores of answers: what is found, by whom, for how long, and after restarts."""

import asyncio
import json
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enginebay_responses.settings import ResponsesSettings
from enginebay_responses.store.answers_file import AnswersFile
from enginebay_responses.store.memory_store import MemoryStore
from enginebay_responses.store.open_store import open_store
from enginebay_responses.store.retention import Limits
from enginebay_responses.store.sqlite_store import SqliteStore
from enginebay_responses.store.store import ResponseStore, StoredResponse

MANY = Limits(entries=100_000, bytes=1_000_000_000, seconds=1e9)
Json = dict[str, Any]


def answer(
    number: int,
    owner: str | None = None,
    parent: int | None = None,
    *,
    text: str = "",
    items: tuple[str, ...] = (),
) -> StoredResponse:
    output = [{"id": f"msg_{number}", "text": text}]
    return StoredResponse(
        id=f"resp_{number}",
        owner=owner,
        response={"id": f"resp_{number}", "output": output},
        input=[{"id": item, "of": number} for item in items],
        parent=None if parent is None else f"resp_{parent}",
    )


def opened(path: Path, *, base: Path = Path(), **limits: Any) -> ResponseStore:
    keys = {f"store_{name}": value for name, value in limits.items()}
    store = open_store(ResponsesSettings(store=str(path), **keys), base)
    assert store
    return store


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ResponseStore]:
    """`make(**limits)`: a store of either kind, which the test closes."""

    def make(**limits: Any) -> ResponseStore:
        return opened(tmp_path / "store" if request.param == "sqlite" else Path("memory"), **limits)

    return make


async def found(store: ResponseStore, numbers: range, owner: str | None = None) -> list[int]:
    return [number for number in numbers if await store.get(f"resp_{number}", owner)]


async def item_of(store: ResponseStore, id: str, owner: str | None) -> Json | None:
    return (await store.items([id], owner)).get(id)


async def test_is_had_at_once(make: Callable[..., ResponseStore]) -> None:
    store = make()
    stored = answer(1, text="half \ud83d of a smile, \0, and é", items=("item_1",))
    store.put(stored)
    assert await store.get("resp_1", None) == stored
    assert await store.chain("resp_1", None) == [stored]
    assert await item_of(store, "item_1", None) == {"id": "item_1", "of": 1}
    assert await item_of(store, "msg_1", None) == stored.response["output"][0]
    await store.close()


async def test_nothing_is_shared_with_what_was_put(make: Callable[..., ResponseStore]) -> None:
    store = make()
    stored = answer(1)
    store.put(stored)
    stored.response["output"].append("more")
    first = await store.get("resp_1", None)
    assert first == answer(1)
    first.response.clear()
    assert await store.get("resp_1", None) == answer(1)
    await store.close()


async def test_two_keys(make: Callable[..., ResponseStore]) -> None:  # RESP-24, RESP-29
    store = make()
    store.put(answer(1, "one", items=("shared",)))
    store.put(answer(2, "two", items=("shared",)))
    store.put(answer(3, "two", parent=1))  # as if it had come by the id
    for owner, other in (("one", "resp_2"), ("two", "resp_1"), (None, "resp_1")):
        assert await store.get(other, owner) is None
        assert await store.chain(other, owner) is None
        assert not await store.delete(other, owner)
    assert await store.get("resp_3", "two") is None
    assert await item_of(store, "shared", "one") == {"id": "shared", "of": 1}
    assert await item_of(store, "shared", "two") == {"id": "shared", "of": 2}
    assert await item_of(store, "shared", None) is None
    assert await item_of(store, "msg_1", "two") is None
    await store.close()


async def test_items_of_several_at_once(make: Callable[..., ResponseStore]) -> None:  # RESP-24
    store = make()
    for number, ids in enumerate((["a", "b"], ["b", "c", "c"])):
        stored = answer(number)
        input = [{"id": id, "of": number, "at": at} for at, id in enumerate(ids)]
        store.put(replace(stored, input=input))
    assert await store.items(["c", "b", "a", "d"], None) == {
        "a": {"id": "a", "of": 0, "at": 0},
        "b": {"id": "b", "of": 1, "at": 0},
        "c": {"id": "c", "of": 1, "at": 1},
    }
    assert await store.items(["a"], "somebody") == await store.items([], None) == {}
    await store.close()


async def test_children_go_on(make: Callable[..., ResponseStore]) -> None:  # RESP-27
    store = make()
    for number in range(4):
        store.put(answer(number, parent=number - 1 if number else None))
    assert await store.delete("resp_1", None)
    assert not await store.delete("resp_1", None)
    assert await store.get("resp_1", None) is None
    assert await store.chain("resp_1", None) is None
    assert await item_of(store, "msg_1", None) is None
    chain = await store.chain("resp_3", None)
    assert chain
    assert [each.id for each in chain] == [f"resp_{number}" for number in range(4)]
    store.put(answer(4, parent=1))  # whose parent was deleted while it was made
    assert await found(store, range(5)) == [0, 2, 3, 4]
    await store.close()


async def test_a_parent_that_is_gone(
    make: Callable[..., ResponseStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = make()
    store.put(answer(1, parent=0))
    assert await store.get("resp_1", None) is None
    assert "resp_1 cannot be kept: the answer that it follows" in caplog.text
    await store.close()


async def test_what_is_asked_for_comes_before_what_is_done_later(
    make: Callable[..., ResponseStore],
) -> None:
    store = make()
    store.put(answer(1, items=("item",)))
    store.put(answer(2, parent=1))
    got, chain, item, *deleted = await asyncio.gather(
        store.get("resp_1", None),
        store.chain("resp_2", None),
        item_of(store, "item", None),
        store.delete("resp_2", None),
        store.delete("resp_1", None),
    )
    assert got == answer(1, items=("item",))
    assert chain == [answer(1, items=("item",)), answer(2, parent=1)]
    assert item == {"id": "item", "of": 1}
    assert deleted == [True, True]
    await store.close()


async def test_larger_than_all(
    make: Callable[..., ResponseStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = make(bytes=1000)
    store.put(answer(1, text="x" * 500))
    store.put(answer(2, text="x" * 1000))
    store.put(answer(3, text="x" * 500, parent=1))
    assert await found(store, range(4)) == [1]  # which did not have to go for it
    assert "resp_2 cannot be kept" in caplog.text
    assert "resp_3 cannot be kept" in caplog.text
    assert "responses.store_bytes is 1000" in caplog.text
    await store.close()


async def test_ten_thousand(make: Callable[..., ResponseStore], tmp_path: Path) -> None:  # RESP-30
    store = make(entries=50, bytes=20_000)
    for number in range(10_000):
        store.put(answer(number, parent=number - 1 if number % 10 else None, text="x" * 100))
    await store.close()
    if isinstance(store, SqliteStore):
        assert (tmp_path / "store").stat().st_size < 200_000
        store = make(entries=50, bytes=20_000)
    assert await found(store, range(10_000)) == [*range(9950, 10_000)]
    store.put(answer(10_000, text="x" * 15_000))
    kept = await found(store, range(10_001))
    assert kept[-1] == 10_000
    assert len(kept) < 35
    await store.close()


async def test_bytes_of_hidden_parents_count(make: Callable[..., ResponseStore]) -> None:
    store = make(bytes=1200)
    store.put(answer(0, text="x" * 400))
    store.put(answer(1, text="x" * 400, parent=0))
    await store.delete("resp_0", None)
    store.put(answer(2, text="x" * 400))  # 0 and 1 have to go for it
    assert await found(store, range(3)) == [2]
    await store.close()


# Against a model that is easy to believe.


class Model:
    """All that was ever put; what is kept is computed anew from it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.all: dict[str, StoredResponse] = {}
        self.used: dict[str, float] = {}  # of what can be found, least recently used first

    def fit(self, now: float) -> None:
        while self.used:
            kept = {each.id: each for id in self.used for each in self.chain_of(self.all[id])}
            oldest = next(iter(self.used))
            if (
                self.used[oldest] >= now - self.limits.seconds
                and len(self.used) <= self.limits.entries
                and sum(map(size, kept.values())) <= self.limits.bytes
            ):
                return
            del self.used[oldest]

    def chain_of(self, stored: StoredResponse) -> list[StoredResponse]:
        before = self.chain_of(self.all[stored.parent]) if stored.parent else []
        return [*before, stored]

    def is_kept(self, id: str) -> bool:
        return any(each.id == id for found in self.used for each in self.chain_of(self.all[found]))

    def put(self, stored: StoredResponse, now: float) -> None:
        self.fit(now)
        parent = self.all.get(stored.parent or "")
        if stored.parent and not (
            parent and self.is_kept(parent.id) and parent.owner == stored.owner
        ):
            return
        if sum(map(size, self.chain_of(stored))) > self.limits.bytes:
            return
        self.all[stored.id] = stored
        self.used[stored.id] = now
        self.fit(now)

    def use(self, id: str, owner: str | None, now: float) -> StoredResponse | None:
        self.fit(now)
        if id not in self.used or self.all[id].owner != owner:
            return None
        del self.used[id]
        self.used[id] = now
        return self.all[id]

    def item(self, item: str, owner: str | None, now: float) -> Json | None:
        self.fit(now)
        having = [
            each
            for each in self.all.values()
            if each.id in self.used and each.owner == owner and item in items(each)
        ]
        if not having:
            return None
        self.use(having[-1].id, owner, now)
        return items(having[-1])[item]

    def delete(self, id: str, owner: str | None, now: float) -> bool:
        self.fit(now)
        if id not in self.used or self.all[id].owner != owner:
            return False
        del self.used[id]
        return True


def size(stored: StoredResponse) -> int:
    content = {"response": stored.response, "input": stored.input}
    return len(json.dumps(content, separators=(",", ":")))


def items(stored: StoredResponse) -> dict[str, Json]:
    return {item["id"]: item for item in (*stored.input, *stored.response["output"])}


NUMBERS = st.integers(0, 12)
OWNERS = st.sampled_from([None, "one", "two"])
ITEMS = st.sampled_from(["a", "b", "msg_0", "msg_3"])
STEPS = st.one_of(
    st.tuples(
        st.just("put"),
        st.builds(
            dict,
            owner=OWNERS,
            parent=st.none() | NUMBERS,
            text=st.integers(0, 500).map("x".__mul__),
            items=st.lists(ITEMS, unique=True, max_size=2).map(tuple),
        ),
    ),
    *(st.tuples(st.sampled_from(["get", "chain", "delete"]), NUMBERS, OWNERS) for _ in "12"),
    st.tuples(st.just("item"), ITEMS, OWNERS),
    st.tuples(st.just("wait"), st.floats(0, 40)),
    st.just(("restart",)),
)
LIMITS = st.builds(
    Limits, entries=st.integers(1, 6), bytes=st.integers(60, 2000), seconds=st.just(100.0)
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(steps=st.lists(STEPS, min_size=5, max_size=60), limits=LIMITS)
@example(  # the last one to go is too old by the time that it is asked for
    steps=[("put", {"owner": None, "parent": None, "text": "", "items": ()}), ("wait", 101.0)],
    limits=Limits(entries=1, bytes=75, seconds=100.0),
)
def test_is_like_the_model(kind: str, steps: list[tuple[Any, ...]], limits: Limits) -> None:
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        path = Path(folder) / "store" if kind == "sqlite" else None
        runner.run(compare(path, steps, limits))


async def compare(path: Path | None, steps: list[tuple[Any, ...]], limits: Limits) -> None:
    now = 1e6

    def open() -> ResponseStore:
        if path:
            return SqliteStore(AnswersFile(path), limits, clock=lambda: now)
        return MemoryStore(limits, clock=lambda: now)

    model, store, number = Model(limits), open(), 0
    every = [(f"resp_{number}", owner) for number in range(60) for owner in (None, "one", "two")]
    for step, *told in [*steps, *(("delete", *one) for one in every)]:
        now += 0.001
        match step:
            case "put":
                stored = answer(number, **told[0])
                number += 1
                store.put(stored)
                model.put(stored, now)
            case "get" | "chain":
                id, owner = f"resp_{told[0]}", told[1]
                expected = model.use(id, owner, now)
                if step == "get":
                    assert await store.get(id, owner) == expected
                else:
                    chain = model.chain_of(expected) if expected else None
                    assert await store.chain(id, owner) == chain
            case "item":
                assert await item_of(store, *told) == model.item(*told, now)
            case "delete":
                id = told[0] if isinstance(told[0], str) else f"resp_{told[0]}"
                assert await store.delete(id, told[1]) == model.delete(id, told[1], now)
            case "wait":
                now += told[0]
            case "restart" if path:
                await store.close()
                store = open()
    await store.close()
    if path:  # all was deleted, and with the last child its parents
        assert rows(path) == []


def rows(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [id for (id,) in connection.execute("SELECT id FROM responses ORDER BY number")]
    connection.close()
    return found


# Files.


async def test_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = Path("new/folder/answers.sqlite")
    store = opened(path, base=tmp_path)
    for number in range(3):
        store.put(answer(number, "one", number - 1 if number else None, items=(f"item_{number}",)))
    await store.delete("resp_1", "one")
    await store.close()
    store = opened(path, base=tmp_path)
    chain = await store.chain("resp_2", "one")
    assert chain
    assert [each.id for each in chain] == ["resp_0", "resp_1", "resp_2"]
    assert chain[2] == answer(2, "one", 1, items=("item_2",))
    assert await store.get("resp_1", "one") is None
    assert await item_of(store, "item_1", "one") is None
    assert await item_of(store, "item_2", "one")
    assert await store.get("resp_2", None) is None
    await store.close()


async def test_smaller_limits_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for number in range(10):
        store.put(answer(number))
    await store.get("resp_2", None)
    await store.close()
    store = opened(tmp_path / "store", entries=2)
    await store.close()
    assert rows(tmp_path / "store") == ["resp_2", "resp_9"]
    await opened(tmp_path / "store", bytes=10).close()
    assert rows(tmp_path / "store") == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
async def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.touch(0o666)
    store = opened(path)
    store.put(answer(1))
    assert await store.get("resp_1", None)  # written
    assert modes(tmp_path) == {"store": 0o600, "store-wal": 0o600, "store-shm": 0o600}
    await store.close()
    assert modes(tmp_path) == {"store": 0o600}


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.apis.test_response_store import answer, opened

async def main():
    store = opened(Path(sys.argv[1]))
    for number in range(20):
        store.put(answer(number, parent=number - 1 if number else None))
    await store.delete("resp_3", None)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
async def test_survives_being_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, path])
    assert killed.returncode == -signal.SIGKILL
    store = opened(path)
    assert await found(store, range(20)) == [0, 1, 2, *range(4, 20)]
    assert len(await store.chain("resp_19", None) or ()) == 20
    await store.close()


WRITING = """
import asyncio, sys
from pathlib import Path
from tests.apis.test_response_store import answer, opened

async def main():
    sys.stdin.readline()  # until all are there
    store = opened(Path(sys.argv[1]))
    first = int(sys.argv[2])
    for number in range(first, first + 300):
        store.put(answer(number, parent=number - 1 if number > first else None))
        assert await store.get(f"resp_{number}", None)
    assert len(await store.chain(f"resp_{first + 299}", None)) == 300
    await store.close()

asyncio.run(main())
"""


async def test_two_servers_with_one_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    pipe = asyncio.subprocess.PIPE
    servers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITING, path, str(first)), stdin=pipe, stderr=pipe
        )
        for first in (0, 300)
    ]
    told = await asyncio.gather(*(server.communicate(b"\n") for server in servers))
    assert [error for _, error in told] == [b"", b""]
    assert len(rows(path)) == 600


async def test_another_server_has_removed_it(tmp_path: Path) -> None:
    one = opened(tmp_path / "store")
    one.put(answer(1, items=("item",)))
    one.put(answer(2, parent=1))
    await one.get("resp_1", None)
    two = opened(tmp_path / "store", entries=1)
    two.put(answer(3))
    await two.get("resp_3", None)
    assert await one.get("resp_1", None) is None
    assert await one.chain("resp_2", None) is None
    assert await item_of(one, "item", None) is None
    one.put(answer(4, parent=2))
    assert await one.chain("resp_4", None) is None
    await one.close()
    await two.close()
    last = opened(tmp_path / "store")
    assert await found(last, range(5)) == [3]
    await last.close()


def of_another_program(path: Path) -> None:
    with_tables(path, "CREATE TABLE notes (text)")


def of_another_version(path: Path) -> None:
    ours(path)
    with_tables(path, "PRAGMA user_version = 2")


def without_a_column(path: Path) -> None:
    ours(path)
    with_tables(path, "ALTER TABLE responses DROP COLUMN items")


def with_odd_items(path: Path) -> None:
    ours(path)
    with_tables(path, "UPDATE responses SET items = '[1'")


def without_text(path: Path) -> None:
    ours(path)
    with_tables(path, "UPDATE responses SET owner = CAST(x'ff' AS TEXT)")


def cut_off(path: Path) -> None:
    ours(path)
    path.write_bytes(path.read_bytes()[:5000])


def overwritten(path: Path) -> None:
    ours(path)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


def ours(path: Path) -> None:
    async def fill() -> None:
        store = opened(path)
        for number in range(20):
            store.put(answer(number, text="x" * 1000))
        await store.close()

    asyncio.run(fill())


def with_tables(path: Path, command: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(command)
    connection.close()


@pytest.mark.parametrize(
    "breaking",
    [
        lambda path: path.write_text("server:\n  port: 5000\n"),
        lambda path: path.write_bytes(os.urandom(100_000)),
        of_another_program,
        of_another_version,
        without_a_column,
        with_odd_items,
        without_text,
        cut_off,
        overwritten,
    ],
)
def test_a_broken_file_is_set_aside(
    breaking: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    breaking(path)
    before = path.read_bytes()
    for _ in "12":

        async def use() -> None:
            store = opened(path)
            store.put(answer(100))
            assert await found(store, range(101)) == [100]
            await store.delete("resp_100", None)
            await store.close()

        asyncio.run(use())
    (aside,) = tmp_path.glob("store.broken-*")
    assert aside.read_bytes() == before
    (record,) = caplog.records  # and nothing the second time
    assert record.levelno == logging.ERROR
    assert str(path) in record.message
    assert aside.name in record.message
    assert rows(path) == []


FIFOS = [os.mkfifo] if hasattr(os, "mkfifo") else []


def a_folder(path: Path) -> None:
    path.mkdir()


def in_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


@pytest.mark.parametrize("breaking", [a_folder, in_a_file, *FIFOS])
async def test_a_path_that_cannot_be_a_file(
    breaking: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    breaking(folder / "store")
    store = opened(folder / "store")
    assert isinstance(store, MemoryStore)
    store.put(answer(1))
    assert await store.get("resp_1", None)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"{folder / 'store'} cannot be used" in record.message
    assert "in memory" in record.message
    await store.close()


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may write everywhere")
async def test_a_file_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "store").touch(0o400)
    assert isinstance(opened(tmp_path / "store"), MemoryStore)


async def test_a_file_that_is_lost_while_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path / "store")
    store.put(answer(1))
    assert await store.get("resp_1", None)
    with_tables(tmp_path / "store", "DROP TABLE responses")
    store.put(answer(2))
    assert await store.get("resp_2", None) is None
    assert await store.chain("resp_1", None) is None
    assert "answers could not be written to" in caplog.text
    assert "answers could not be read from" in caplog.text
    await store.close()


@pytest.mark.parametrize("body", ["'{'", "x'ff'", "'[]'", "'{\"response\": {}}'"])
async def test_an_answer_that_is_damaged(
    body: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path / "store")
    store.put(answer(1))
    store.put(answer(2))
    assert await store.get("resp_1", None)
    with_tables(tmp_path / "store", f"UPDATE responses SET body = {body} WHERE number = 1")
    assert await store.get("resp_1", None) is None
    assert "answers could not be read from" in caplog.text
    assert await store.get("resp_2", None) == answer(2)
    await store.close()


def test_off() -> None:
    assert open_store(ResponsesSettings(store="off"), Path()) is None
