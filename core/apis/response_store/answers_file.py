"""A SQLite file of answers: what is in it, and whether it can be used."""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from core.apis.response_store.retention import Changes, Record

_APPLICATION = 0x456E6762
_VERSION = 1
_SCHEMA = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,  -- parents have lower ones than their children
    id TEXT NOT NULL UNIQUE,
    owner TEXT,
    parent TEXT,
    items TEXT NOT NULL,
    used REAL NOT NULL,
    hidden INTEGER NOT NULL DEFAULT 0,
    body BLOB NOT NULL
)
"""
_OF_THE_CONTENT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_WAIT_SECONDS = 5  # for another process that is writing


class BrokenFileError(Exception):
    """A file that is there, and can be read, but is no file of answers that this version knows."""


class AnswersFile:
    """An open file of answers, readable by its owner only; to be used by one thread at a time.

    It is made if there is none, with its folder. `BrokenFileError`, or `OSError` or
    `sqlite3.Error` if there is something that keeps it from being used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        if not path.is_file():
            raise OSError("it is not a regular file")
        path.chmod(0o600)
        self._connection = sqlite3.connect(
            path, _WAIT_SECONDS, isolation_level="IMMEDIATE", check_same_thread=False
        )
        try:
            with _broken_told():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def records(self) -> list[Record]:
        """Records of all answers, parents before their children."""
        columns = "id, owner, parent, items, length(body), used, hidden"
        command = f"SELECT {columns} FROM responses ORDER BY number"
        with _broken_told(), closing(self._connection.execute(command)) as rows:
            return [
                Record(
                    id=id,
                    owner=owner,
                    parent=parent,
                    items=tuple(json.loads(items)),
                    size=size,
                    used=float(used),
                    hidden=bool(hidden),
                )
                for id, owner, parent, items, size, used, hidden in rows
            ]

    def save(self, added: tuple[Record, bytes] | None, changes: Changes) -> None:
        """Write an answer, and what has changed of others: all or nothing."""
        with self._connection as connection:
            if added:
                record, body = added
                columns = "id, owner, parent, items, used, body"
                items = json.dumps(record.items)
                values = (record.id, record.owner, record.parent, items, record.used, body)
                connection.execute(
                    f"INSERT INTO responses ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values
                )
            for id, used in changes.used.items():
                connection.execute("UPDATE responses SET used = ? WHERE id = ?", (used, id))
            for id in changes.hidden:
                connection.execute("UPDATE responses SET hidden = 1 WHERE id = ?", (id,))
            for id in changes.gone:
                connection.execute("DELETE FROM responses WHERE id = ?", (id,))

    def bodies(self, ids: Sequence[str]) -> list[bytes] | None:
        """The answers with these ids; None if one is not there."""
        bodies = []
        for id in ids:
            found = self._connection.execute("SELECT body FROM responses WHERE id = ?", (id,))
            row = found.fetchone()
            if row is None:
                return None
            bodies.append(row[0])
        return bodies

    def close(self) -> None:
        """Close the file, which is complete then."""
        self._connection.close()

    def _prepare(self) -> None:
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            version = (self._pragma("application_id"), self._pragma("user_version"))
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables and version == (0, 0):
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            elif version[0] != _APPLICATION:
                raise BrokenFileError("it is the database of another program")
            elif version[1] != _VERSION:
                raise BrokenFileError(f"it has version {version[1]}, not {_VERSION}")
        if (problem := self._pragma("quick_check(1)")) != "ok":
            raise BrokenFileError(f"it is damaged: {problem}")
        self._pragma("journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")  # lost: the last, if power fails

    def _pragma(self, pragma: str) -> int | str:
        value: int | str = self._connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        return value


@contextmanager
def _broken_told() -> Iterator[None]:
    """`BrokenFileError` for errors that have their cause in what the file contains."""
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) in _OF_THE_CONTENT:
            raise BrokenFileError(f"it is damaged: {error}") from error
        raise
    except (TypeError, ValueError) as error:
        raise BrokenFileError(f"it is damaged: {error}") from error


def _code(error: sqlite3.Error) -> int:
    """SQLite's code of an error, without details; text that is none has no code."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def set_aside(path: Path) -> Path:
    """Give a file another name, and to those that belong to it; `OSError` if that fails."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    new = path.with_name(f"{path.name}.broken-{now}")
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{new}{suffix}")
    return new
