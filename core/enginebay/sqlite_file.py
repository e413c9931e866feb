"""A SQLite file of this program's own: made, recognised, and set aside if it is broken."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

_OF_THE_CONTENT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_OF_ANOTHER = "it is the database of another program"
_WAIT_SECONDS = 5  # for another process that is writing


class BrokenFileError(Exception):
    """A file that is there, and can be read, but is none that this version knows."""


class SqliteFile:
    """An open file, readable by its owner only; to be used by one thread at a time.

    It is made if there is none, with its folder. `application` is the id that tells such files from
    those of other programs, `version` that of the tables, which `schema` makes. `BrokenFileError`,
    or `OSError` or `sqlite3.Error` if there is something that keeps it from being used.
    """

    application: int
    version: int
    schema: str

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
            with broken_told():
                self._prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    @contextmanager
    def read(cls, path: Path) -> Iterator[sqlite3.Connection]:
        """Such a file to be read only, which a server may be using.

        `BrokenFileError`, `OSError` or `sqlite3.Error` if it cannot be read, also by the block.
        """
        path.stat()
        # With `mode=ro` the journals of a server that has ended would be made again, and stay.
        address = f"file:{quote(str(path.absolute()))}?mode=rw"
        with broken_told(), closing(sqlite3.connect(address, uri=True)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if application != cls.application:
                raise BrokenFileError(_OF_ANOTHER)
            yield connection

    def close(self) -> None:
        """Close the file, which is complete then."""
        self._connection.close()

    def _prepare(self) -> None:
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            version = (self._pragma("application_id"), self._pragma("user_version"))
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables and version == (0, 0):
                connection.execute(self.schema)
                connection.execute(f"PRAGMA application_id = {self.application}")
                connection.execute(f"PRAGMA user_version = {self.version}")
            elif version[0] != self.application:
                raise BrokenFileError(_OF_ANOTHER)
            elif version[1] != self.version:
                raise BrokenFileError(f"it has version {version[1]}, not {self.version}")
        if (problem := self._pragma("quick_check(1)")) != "ok":
            raise BrokenFileError(f"it is damaged: {problem}")
        try:
            self._pragma("journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_locked(
                error
            ):  # for this SQLite waits for nobody; the mode stays with the file
                raise
        self._connection.execute("PRAGMA synchronous = NORMAL")  # lost: the last, if power fails

    def _pragma(self, pragma: str) -> int | str:
        value: int | str = self._connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        return value


@contextmanager
def broken_told() -> Iterator[None]:
    """`BrokenFileError` for errors that have their cause in what the file contains."""
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) in _OF_THE_CONTENT:
            raise BrokenFileError(f"it is damaged: {error}") from error
        raise
    except (TypeError, ValueError) as error:
        raise BrokenFileError(f"it is damaged: {error}") from error


def is_locked(error: Exception) -> bool:
    """Whether an error says only that another process is writing, and for long."""
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY


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
