"""Saved states in RAM and on disk: limits, what replaces what, and what survives."""

import os
import shutil
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from enginebay.engine.kv_store import store as store_module
from enginebay.engine.kv_store.seals import Encryption
from enginebay.engine.kv_store.state_file import StateFiles
from enginebay.engine.kv_store.state_folder import StateFolder
from enginebay.engine.kv_store.store import KvStore

KIND = {"model": "abc", "number formats": "f16"}
FOREVER = 1e9


def folder_at(
    root: Path,
    kind: Mapping[str, str] = KIND,
    limit: int = 1 << 30,
    files: StateFiles | None = None,
) -> StateFolder:
    return StateFolder(root, "a.gguf", kind, files or StateFiles(), limit)


def on_disk(root: Path, **more: object) -> KvStore:
    return KvStore(0, folder_at(root, **more), cuts=True, clock=lambda: 0.0)  # type: ignore[arg-type]


def state(text: str, size: int = 1000) -> memoryview:
    return memoryview((text.encode() * size)[:size])


def tokens(*numbers: int) -> list[int]:
    return [number for number in numbers for _ in range(100)]


def saved(store: KvStore, ids: list[int], key: bytes = b"k") -> memoryview | None:
    """The state that shares any token with these."""
    found = store.find(key, ids)
    return store.fetch(found[0]).result(30) if found else None


def put(store: KvStore, ids: list[int], text: str, size: int = 1000, key: bytes = b"k") -> bool:
    done = store.put(key, ids, state(text, size))
    store.flush(FOREVER)
    return done


def test_ram_holds_the_last_used_ones_within_its_limit() -> None:
    store = KvStore(3000, None, cuts=True)
    assert all(put(store, tokens(number), str(number)) for number in (1, 2, 3))
    assert saved(store, tokens(1)) == state("1")
    assert put(store, tokens(4), "4")
    assert [bool(saved(store, tokens(number))) for number in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]
    assert store.ram_bytes == 3000
    assert not put(store, tokens(5), "5", size=3001)  # larger than the limit
    assert put(store, tokens(6), "6", size=3000)
    assert len(store) == 1


def test_what_is_on_disk_outlives_the_store(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    put(store, tokens(1, 2), "a")
    put(store, tokens(3), "b", key=b"other salt")
    assert store.ram_bytes == 0
    store.close(FOREVER)
    again = on_disk(tmp_path)
    assert len(again) == 2
    assert again.disk_bytes > 2000
    found = again.find(b"k", tokens(1, 2, 9))
    assert found
    assert found[1] == 200
    assert saved(again, tokens(1)) == state("a")
    assert saved(again, tokens(3)) is None  # of another key
    assert saved(again, tokens(3), key=b"other salt") == state("b")
    assert again.has(b"k", tokens(1, 2))
    assert again.has(b"k", [*tokens(1, 2), 7])  # one token is soon computed
    assert not again.has(b"k", tokens(1, 2, 3))


def test_a_longer_conversation_replaces_its_beginning(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    put(store, tokens(1), "a")
    put(store, tokens(2), "b")
    put(store, tokens(1, 1, 3), "c")
    assert len(store) == 2
    assert saved(store, tokens(1)) == state("c")
    store.close(FOREVER)
    assert len(list(tmp_path.rglob("*.kv"))) == 2


def test_recurrent_states_are_of_use_as_a_whole_only(tmp_path: Path) -> None:
    store = KvStore(1 << 20, None, cuts=False)
    put(store, tokens(1), "a")
    put(store, tokens(1, 2), "b")
    assert saved(store, tokens(1, 3)) == state("a")
    assert saved(store, [1] * 99) is None
    assert not store.has(b"k", [1] * 99)
    assert len(store) == 2


def test_disk_is_limited_to_the_last_used_of_all_models(tmp_path: Path) -> None:
    other = KvStore(0, StateFolder(tmp_path, "b.gguf", KIND, StateFiles(), 1 << 30), cuts=True)
    for number in range(3):
        put(other, tokens(number), "o", 10_000)
    for age, path in enumerate(sorted(tmp_path.rglob("*.kv"))):
        os.utime(path, (age, age))
    store = on_disk(tmp_path, limit=40_000)
    put(store, tokens(9), "n", 10_000)
    assert len(list(tmp_path.rglob("*.kv"))) == 2 + 1
    sizes = sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    assert sizes <= 40_000
    found = [bool(saved(other, tokens(number))) for number in range(3)]
    assert sorted(found) == [False, True, True]  # one was deleted under the other model's hands
    assert len(other) == 2


def test_what_does_not_fit_is_ignored_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ENG-8: foreign, old and broken files."""
    for number, kind in enumerate(
        ({**KIND, "model": "x"}, {"model": "abc", "number formats": "q8_0"})
    ):
        store = on_disk(tmp_path, kind=kind)
        put(store, tokens(number), "a")
        put(store, tokens(number + 5), "a")
        store.close(FOREVER)
    folder = next(tmp_path.iterdir())
    (folder / f"{'0' * 32}.kv").write_bytes(b"EBAYKV00" + bytes(1000))
    (folder / f"{'1' * 32}.kv").write_bytes(b"EBAY")
    caplog.clear()
    store = on_disk(tmp_path)
    assert len(store) == 0
    said = sorted(record.getMessage().removeprefix(f"{folder}: ") for record in caplog.records)
    assert said == [
        "2 saved states are ignored, each because it is of another model",
        "2 saved states are ignored, each because it is of another number formats",
        "a saved state is ignored, because it is of another version",
        "a saved state is ignored, because it is too short",
    ]
    caplog.clear()
    assert saved(store, tokens(0)) is None
    assert not caplog.records


def test_a_damaged_state_is_said_and_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = on_disk(tmp_path)
    put(store, tokens(1), "a")
    (path,) = tmp_path.rglob("*.kv")
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    assert saved(store, tokens(1)) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: the saved state is damaged and was deleted: its checksum is wrong"
    ]
    assert len(store) == 0
    assert not path.exists()


def test_with_a_key_file_only_its_holder_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def files(secret: bytes) -> StateFiles:
        return StateFiles(partial(Encryption, secret))

    put(on_disk(tmp_path, files=files(b"one")), tokens(1), "a")
    assert len(on_disk(tmp_path, files=files(b"two"))) == 0
    assert len(on_disk(tmp_path)) == 0
    assert saved(on_disk(tmp_path, files=files(b"one")), tokens(1)) == state("a")
    (path,) = tmp_path.rglob("*.kv")  # nobody deleted it
    assert path.exists()


def test_a_full_disk_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    store = on_disk(tmp_path)
    for number in range(3):
        put(store, tokens(number), "a")
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.ram_bytes == 0


def test_a_disk_is_not_filled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least recently used make room there as well, and something is left to others."""
    size, others = 200_000, [0]

    def usage(path: Path) -> SimpleNamespace:
        used = sum(file.stat().st_size for file in path.rglob("*.kv")) + others[0]
        return SimpleNamespace(total=size, used=used, free=max(0, size - used))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    store = on_disk(tmp_path)
    for number in range(30):
        put(store, tokens(number), "a", 10_000)
        assert usage(tmp_path).free >= size // 20
    assert saved(store, tokens(29)) == state("a", 10_000)
    last, *more = tmp_path.rglob("*.kv")
    assert len(more) > 10
    for path in more:
        path.unlink()
    others[0] = size - last.stat().st_size
    put(store, tokens(30), "a", 10_000)
    assert [*tmp_path.rglob("*.kv")] == [last]  # to delete it would be of no use
    assert "No space left on device" in caplog.text


class Slow(StateFiles):
    """Writes when told to."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "gate", threading.Event())

    def write(self, *arguments: object) -> None:
        self.gate.wait(30)  # type: ignore[attr-defined]
        super().write(*arguments)  # type: ignore[arg-type]


def test_what_is_being_written_counts_and_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WRITING", 0)
    files = Slow()
    store = KvStore(2500, folder_at(tmp_path, files=files), cuts=True)
    assert store.put(b"k", tokens(1), state("a"))
    assert store.put(b"k", tokens(2), state("b"))
    assert not store.has_room(100)
    assert not store.put(b"k", tokens(3), state("c"))
    assert saved(store, tokens(2)) == state("b")  # before it is on disk
    files.gate.set()  # type: ignore[attr-defined]
    store.flush(FOREVER)
    assert store.has_room(100)
    assert store.put(b"k", tokens(3), state("c"))
    store.close(FOREVER)
    assert len(on_disk(tmp_path)) == 3


def test_a_state_that_is_replaced_while_it_is_written_leaves_no_file(tmp_path: Path) -> None:
    files = Slow()
    store = KvStore(1 << 20, folder_at(tmp_path, files=files), cuts=True)
    for length in (100, 101, 105):
        assert store.put(b"k", [1] * length, state(str(length)))
    files.gate.set()  # type: ignore[attr-defined]
    store.flush(FOREVER)
    store.close(FOREVER)
    assert len(list(tmp_path.rglob("*.kv"))) == 1
    assert saved(on_disk(tmp_path), [1] * 105) == state("105")


def test_closing_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    files = Slow()
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    store = KvStore(1 << 20, folder_at(tmp_path, files=files), cuts=True, clock=clock)
    for number in range(5):
        store.put(b"k", tokens(number), state("a"))
    store.close(3.0)
    files.gate.set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "x:y", "über 8b.gguf"])
def test_names_of_models_are_names_of_folders(name: str, tmp_path: Path) -> None:
    StateFolder(tmp_path / "root", name, KIND, StateFiles(), 1 << 20)
    (made,) = (tmp_path / "root").iterdir()
    assert made.is_dir()
    assert not made.name.startswith(".")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_a_folder_that_somebody_deletes_is_made_again(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    put(store, tokens(1), "a")
    shutil.rmtree(tmp_path)
    assert saved(store, tokens(1)) is None
    put(store, tokens(2), "b")
    assert saved(store, tokens(2)) == state("b")
    store.close(FOREVER)
    assert len(on_disk(tmp_path)) == 1


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """Kivy's files end in .kv, and everybody's in .tmp; `cache_dir: .` may be anywhere."""
    named = "0" * 32
    folder = tmp_path / "a.gguf"
    theirs = [
        tmp_path / f"{named}.kv",
        tmp_path / "app" / "main.kv",
        tmp_path / "app" / "deep" / f"{named}.kv",
        tmp_path / "app" / "download.tmp",
        folder / "notes.tmp",
        folder / f"{named}.kv.tmp",
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10_000))
        os.utime(path, (0, 0))
    ours = folder / f"{named}.tmp"
    ours.touch()
    os.utime(ours, (0, 0))
    store = on_disk(tmp_path, limit=40_000)
    for number in range(4):
        put(store, tokens(number), "a", 10_000)
    assert all(path.exists() for path in theirs)
    assert not ours.exists()
    assert len([path for path in tmp_path.rglob("*.kv") if path not in theirs]) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    put(on_disk(tmp_path), tokens(1), "a")
    (path,) = tmp_path.rglob("*.kv")
    os.mkfifo(path.with_name(f"{'0' * 32}.kv"))
    path.with_name(f"{'1' * 32}.kv").symlink_to("/dev/zero")
    path.with_name(f"{'2' * 32}.kv").mkdir()
    store = on_disk(tmp_path)
    assert len(store) == 1
    assert saved(store, tokens(1)) == state("a")


def test_memory_that_runs_out_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Poor(StateFiles):
        def write(self, *arguments: object) -> None:
            raise MemoryError

        def state(self, *arguments: object) -> memoryview:
            raise MemoryError

    put(on_disk(tmp_path), tokens(1), "a")
    poor = on_disk(tmp_path, files=Poor())
    for _ in range(2):
        assert saved(poor, tokens(1)) is None
        put(poor, tokens(2), "b")
    assert len(caplog.records) <= 2
    assert saved(on_disk(tmp_path), tokens(1)) == state("a")  # it was not deleted
