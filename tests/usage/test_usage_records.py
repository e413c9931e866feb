"""What is used is in a file, whatever happens to that. KEY-1"""

import asyncio
import logging
import shutil
import sqlite3
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from enginebay import sqlite_file
from enginebay.chat.answer.account import Used
from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from enginebay.server.usage.usage_file import Slot, read_usage, usage_path
from enginebay.server.usage.usage_records import UsageRecords

DAY = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
TODAY = Slot("2026-01-31", "anna", "m")
ONE = Used(1, 20, 5, 3)


class Now:
    time = DAY

    def __call__(self) -> datetime:
        return self.time


def records_of(path: Path | None, now: Now | None = None) -> UsageRecords:
    return UsageRecords(path, now=now or Now())


def errors(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if each.levelno >= logging.ERROR]


def kept(path: Path) -> dict[Slot, Used]:
    return read_usage(path, "0000-00-00", None)


def aside_in(folder: Path) -> list[Path]:
    return [*folder.glob("usage.db.broken-*")]


def delete(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


async def everything(records: UsageRecords, key: str | None = None) -> dict[Slot, Used]:
    return await records.usage(DAY.date() - timedelta(days=1000), key)


async def test_what_is_added_is_kept_by_day_key_and_model(tmp_path: Path) -> None:
    path, now = tmp_path / "folder" / "usage.db", Now()
    records = records_of(path, now)
    records.add("anna", "m", ONE)
    records.add("anna", "m", Used(0, 0, 0, 4))
    records.add("anna", "other", ONE)
    records.add("", "m", ONE)
    assert not path.exists(), "it is written later, and not on the event loop"
    assert records.tokens_today("anna") == 23 + 4 + 23
    await records.write()
    now.time += timedelta(minutes=1)
    assert records.tokens_today("anna") == 0
    records.add("anna", "m", ONE)
    assert records.tokens_today("anna") == 23
    await records.write()
    assert records.tokens_today("anna") == 23
    expected = {
        Slot("2026-01-31", "", "m"): ONE,
        TODAY: Used(1, 20, 5, 7),
        Slot("2026-01-31", "anna", "other"): ONE,
        Slot("2026-02-01", "anna", "m"): ONE,
    }
    assert kept(path) == expected == await everything(records)
    assert [*await everything(records)] == [*expected], "sorted"
    assert [*await everything(records, "")] == [Slot("2026-01-31", "", "m")]
    assert [*await records.usage(now.time.date(), None)] == [Slot("2026-02-01", "anna", "m")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await records.close()
    records = records_of(path, now)
    assert await everything(records) == expected
    await records.close()


async def test_without_a_file_it_is_kept_in_memory() -> None:
    records = records_of(None)
    records.add("anna", "m", ONE)
    await records.write()
    assert records.tokens_today("anna") == 23
    assert await everything(records) == {TODAY: ONE}
    assert await everything(records, "bob") == {}
    await records.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from enginebay.chat.answer.account import Used
from enginebay.server.usage.usage_records import UsageRecords

async def main():
    records = UsageRecords(Path(sys.argv[1]))
    sys.stdin.readline()
    for _ in range(60):
        records.add("anna", "m", Used(1, 20, 5, 3))
        await records.write()
    await records.close()

asyncio.run(main())
"""


async def test_several_servers_add_to_one_file(tmp_path: Path) -> None:
    path, pipe = tmp_path / "usage.db", asyncio.subprocess.PIPE
    servers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITER, path), stdin=pipe, stderr=pipe
        )
        for _ in range(3)
    ]
    told = await asyncio.gather(*(server.communicate(b"\n") for server in servers))
    assert [error for _, error in told] == [b""] * 3
    [used] = kept(path).values()
    assert used == Used(180, 3600, 900, 540)


async def test_of_two_servers_each_knows_what_both_have_used_today(tmp_path: Path) -> None:
    one, two = (records_of(tmp_path / "usage.db") for _ in "12")
    one.add("anna", "m", ONE)
    await one.write()
    two.add("anna", "m", ONE)
    await two.write()
    assert two.tokens_today("anna") == 46
    one.add("bob", "m", ONE)
    await one.write()
    assert one.tokens_today("anna") == 46
    await one.close()
    await two.close()


async def test_a_server_at_rest_knows_what_others_do_to_the_file(tmp_path: Path) -> None:
    """A key that has used all of its day can add nothing, and waits for just that."""
    path = tmp_path / "usage.db"
    one, two = records_of(path), records_of(path)
    await one.write()
    two.add("anna", "m", ONE)
    await two.write()
    await one.write()
    assert one.tokens_today("anna") == 23
    await two.close()
    delete(path)
    await one.write()
    assert one.tokens_today("anna") == 0, "to begin anew, delete the file"
    await one.close()


async def test_a_disk_that_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "usage.db"
    records = records_of(path)
    records.add("anna", "m", ONE)
    await records.write()
    assert records._file
    records._file._connection.execute("PRAGMA max_page_count = 1")
    for number in range(500):
        records.add(f"key{number}", "m", ONE)
    await records.write()
    assert records.trouble
    assert records.trouble.reason == "database or disk is full"
    assert records.trouble.since == DAY
    assert records.tokens_today("key7") == 23
    [error] = errors(caplog)
    assert f"usage cannot be written to {path}: database or disk is full; it is kept" in error
    assert len(kept(path)) == 1, "all or nothing"
    await records.write()  # there is room again
    assert records.trouble is None
    assert f"usage is written to {path} again" in caplog.text
    assert len(kept(path)) == 501
    assert records.tokens_today("key7") == 23
    await records.close()


async def test_a_file_that_somebody_else_has_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_WAIT_SECONDS", 0)
    path = tmp_path / "usage.db"
    records = records_of(path)
    records.add("anna", "m", ONE)
    await records.write()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for count in range(2, 5):
        records.add("anna", "m", ONE)
        await records.write()
        assert records.trouble
        assert records.tokens_today("anna") == 23 * count, "once, though tried again and again"
        # Reading waits for nobody who writes, and says nothing of whether it could be written.
        assert await everything(records) == {TODAY: Used(count, 20 * count, 5 * count, 3 * count)}
        assert records.trouble
    [error] = errors(caplog)
    assert "database is locked" in error
    other.execute("COMMIT")
    other.close()
    await records.write()
    assert records.trouble is None
    assert await everything(records) == {TODAY: Used(4, 80, 20, 12)} == kept(path)
    await records.close()


@pytest.mark.parametrize("content", [b"server:\n  port: 5000\n", bytes(range(256)) * 100])
async def test_a_broken_file_is_set_aside(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "usage.db"
    path.write_bytes(content)
    records = records_of(path)
    records.add("anna", "m", ONE)
    await records.write()
    assert kept(path) == {TODAY: ONE}
    [aside] = aside_in(tmp_path)
    assert aside.read_bytes() == content
    [error] = errors(caplog)
    assert aside.name in error
    await records.close()


async def test_a_file_that_is_deleted_or_replaced_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    records = records_of(path)
    records.add("anna", "m", ONE)
    await records.write()
    shutil.rmtree(tmp_path)
    assert await everything(records) == {}
    records.add("anna", "m", ONE)
    await records.write()
    assert kept(path) == {TODAY: ONE}
    await records.close()


async def test_a_path_that_cannot_be_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "usage.db"
    path.mkdir()
    records = records_of(path)
    records.add("anna", "m", ONE)
    for _ in range(3):
        await records.write()
    assert await everything(records) == {TODAY: ONE}
    assert records.trouble
    assert str(tmp_path) not in records.trouble.reason, "/health shows it to strangers"
    assert len(errors(caplog)) == 1
    path.rmdir()
    await records.write()
    assert kept(path) == {TODAY: ONE}
    await records.close()


async def test_what_cannot_be_written_in_the_end_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usage.db").mkdir()
    records = records_of(tmp_path / "usage.db")
    records.add("anna", "m", ONE)
    await records.close()
    assert "what was used since is lost" in errors(caplog)[-1]


async def test_a_write_that_is_cancelled_counts_once(tmp_path: Path) -> None:
    records = records_of(tmp_path / "usage.db")
    for _ in range(20):
        records.add("anna", "m", ONE)
        writing = asyncio.create_task(records.write())
        await asyncio.sleep(0)
        writing.cancel()
    await records.close()
    assert kept(tmp_path / "usage.db") == {TODAY: Used(20, 400, 100, 60)}


async def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    records = records_of(tmp_path / "usage.db")
    records.add("anna", "m\udcff'; DROP TABLE usage; --", ONE)
    await records.write()
    [slot] = kept(tmp_path / "usage.db")
    assert slot.model == "m?'; DROP TABLE usage; --"
    await records.close()


def test_where_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("server: {usage_file: 'kept/u.db'}", "utf-8")
    assert usage_path(load_config(tmp_path / "config.yml")) == tmp_path / "kept" / "u.db"
    (tmp_path / "config.yml").write_text("models: []", "utf-8")
    assert usage_path(load_config(tmp_path / "config.yml")) == tmp_path / "usage.db"
    for text in ("off", "'off'"):
        (tmp_path / "config.yml").write_text(f"server: {{usage_file: {text}}}", "utf-8")
        assert usage_path(load_config(tmp_path / "config.yml")) is None
    assert usage_path(Config()) is None, "there is no config that it could be beside"


@pytest.mark.wing("responses")
def test_it_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text("server:\n  keys_file: a.db\n  usage_file: a.db\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    [problem] = caught.value.problems
    assert str(problem) == (
        f"{path}:3: server.usage_file: must be another file than `server.keys_file`, not 'a.db'"
    )
    path.write_text("server:\n  usage_file: a.db\nresponses:\n  store: a.db\n", "utf-8")
    [problem] = check_config(load_config(path), Plugins())
    said = "must be another file than `server.usage_file`"
    assert str(problem) == f"{path}:4: responses.store: {said}"
    path.write_text("server:\n  response_store: a.db\n  usage_file: a.db\n", "utf-8")
    [problem] = check_config(load_config(path), Plugins())
    assert str(problem) == f"{path}:2: server.response_store: {said}"
