"""The SQLite file of what keys use of models, by day."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import astuple, fields
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

from enginebay.chat.answer.account import Used
from enginebay.config.schema import Config
from enginebay.sqlite_file import SqliteFile, broken_told

_COUNTS = [field.name for field in fields(Used)]
_COLUMNS = ", ".join(_COUNTS)


def usage_path(config: Config) -> Path | None:
    """The file that a config asks for; None if usage is kept in memory.

    A relative path is relative to the config's file: without one there is none.
    """
    path = Path(config.server.usage_file).expanduser()
    if config.server.usage_file == "off" or not (path.is_absolute() or config.origins.file):
        return None
    return config.base / path


class Slot(NamedTuple):
    """What is counted together: a day of UTC as YYYY-MM-DD, a key's name, a model's name.

    The name of no key is empty.
    """

    day: str
    key: str
    model: str


Usage = Mapping[Slot, Used]


class Mark(NamedTuple):
    """The number of what a server has handed on last, and the day of UTC on which it did."""

    number: int
    day: str


_MARKS = """
CREATE TABLE IF NOT EXISTS handed_on (
    server TEXT PRIMARY KEY,  -- its id, a new one with each start
    number INTEGER NOT NULL,
    day TEXT NOT NULL
) WITHOUT ROWID
"""
_DAYS_OF_MARKS = 7  # in which a server repeats, or has forgotten, what it was not sure to have told


class UsageFile(SqliteFile):
    """An open file of usage, to which several servers may add."""

    application = 0x456E6775
    version = 1
    schema = """
    CREATE TABLE usage (
        day TEXT NOT NULL,  -- of UTC
        key TEXT NOT NULL,  -- its name; empty without one
        model TEXT NOT NULL,
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,  -- of those of prompts
        completion_tokens INTEGER NOT NULL,
        PRIMARY KEY (day, key, model)
    ) WITHOUT ROWID
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._opened = path.stat()

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to it."""
        try:
            return os.path.samestat(self.path.stat(), self._opened)
        except OSError:
            return False

    def add(self, usage: Usage, marks: Mapping[str, Mark] | None = None) -> None:
        """Count this, too, and note what servers have handed on: all or nothing."""
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTS)
        command = (
            f"INSERT INTO usage (day, key, model, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (day, key, model) DO UPDATE SET {added}"
        )
        rows = [(*slot, *astuple(used)) for slot, used in usage.items()]
        with broken_told(), self._connection as connection:
            connection.executemany(command, rows)
            if marks:
                _note(connection, marks)

    def marks(self) -> dict[str, Mark]:
        """What servers have handed on last."""
        there = "SELECT count(*) FROM sqlite_master WHERE name = 'handed_on'"
        with broken_told():
            if not self._connection.execute(there).fetchone()[0]:
                return {}
            rows = self._connection.execute("SELECT server, number, day FROM handed_on")
            return {server: Mark(int(number), day) for server, number, day in rows.fetchall()}

    def tokens(self, day: str) -> dict[str, int]:
        """The tokens of a day by the names of keys."""
        command = (
            "SELECT key, sum(prompt_tokens + completion_tokens) FROM usage WHERE day = ? GROUP BY 1"
        )
        with broken_told(), closing(self._connection.execute(command, (day,))) as rows:
            return {key: int(tokens) for key, tokens in rows}

    def usage(self, since: str, key: str | None) -> dict[Slot, Used]:
        """From this day on, of one key or all."""
        with broken_told():
            return dict(_usage(self._connection, since, key))


def read_usage(path: Path, since: str, key: str | None) -> dict[Slot, Used]:
    """`UsageFile.usage` of a file that is not changed, and that a server may be using.

    `BrokenFileError`, `OSError` or `sqlite3.Error` if it cannot be read.
    """
    with UsageFile.read(path) as connection:
        return dict(_usage(connection, since, key))


def _usage(
    connection: sqlite3.Connection, since: str, key: str | None
) -> Iterator[tuple[Slot, Used]]:
    command = (
        f"SELECT day, key, model, {_COLUMNS} FROM usage WHERE day >= ? AND key = coalesce(?, key) "
        "ORDER BY day, key, model"
    )
    with closing(connection.execute(command, (since, key))) as rows:
        for day, name, model, *counts in rows:
            yield Slot(day, name, model), Used(*map(int, counts))


def _note(connection: sqlite3.Connection, marks: Mapping[str, Mark]) -> None:
    connection.execute(_MARKS)
    rows = [(server, *mark) for server, mark in marks.items()]
    connection.executemany("INSERT OR REPLACE INTO handed_on VALUES (?, ?, ?)", rows)
    newest = date.fromisoformat(max(mark.day for mark in marks.values()))
    before = (newest - timedelta(days=_DAYS_OF_MARKS)).isoformat()
    connection.execute("DELETE FROM handed_on WHERE day < ?", (before,))
