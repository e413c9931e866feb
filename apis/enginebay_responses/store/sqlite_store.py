"""Answers in a SQLite file, which outlive the server."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from enginebay_responses.store.answers_file import AnswersFile
from enginebay_responses.store.kept_responses import Content, KeptResponses, unpacked
from enginebay_responses.store.retention import Changes, Limits, Record

logger = logging.getLogger(__name__)


class SqliteStore(KeptResponses):
    """A store that goes on where the last one with this file has ended.

    One thread reads and writes, in the order in which it is asked to; what is not yet written when
    the server dies is lost. Of several servers with one file each sees what it has written itself,
    and what was there when it started, less what others have removed since.
    """

    def __init__(
        self, file: AnswersFile, limits: Limits, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(limits, clock=clock)
        self._file = file
        self._thread = ThreadPoolExecutor(1, "enginebay-responses")
        self._kept.restore(file.records())
        self._begin()

    async def close(self) -> None:
        self._thread.submit(self._file.close)
        await asyncio.to_thread(self._thread.shutdown)

    def _write(self, added: tuple[Record, bytes] | None, changes: Changes) -> None:
        self._thread.submit(self._save, added, changes)

    def _save(self, added: tuple[Record, bytes] | None, changes: Changes) -> None:
        try:
            self._file.save(added, changes)
        except sqlite3.Error as error:
            logger.error("answers could not be written to %s: %s", self._file.path, error)

    async def _written(self) -> None:
        await asyncio.wrap_future(self._thread.submit(lambda: None))

    async def _read(self, ids: Sequence[str]) -> list[Content] | None:
        return await asyncio.wrap_future(self._thread.submit(self._contents, ids))

    def _contents(self, ids: Sequence[str]) -> list[Content] | None:
        try:
            bodies = self._file.bodies(ids)
            return None if bodies is None else unpacked(bodies)
        except (sqlite3.Error, LookupError, TypeError, ValueError) as error:
            logger.error("answers could not be read from %s: %s", self._file.path, error)
            return None
