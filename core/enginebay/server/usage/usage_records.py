"""What keys use, kept in a file that is written by a thread of its own."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TypeVar

from enginebay.chat.answer.account import Used
from enginebay.contract.errors import encodable
from enginebay.server.usage.records import Records, Trouble
from enginebay.server.usage.records import utc_now as utc_now
from enginebay.server.usage.usage_file import Mark, Slot, Usage, UsageFile
from enginebay.sqlite_file import BrokenFileError, is_locked, set_aside

logger = logging.getLogger(__name__)

T = TypeVar("T")


class UsageRecords(Records):
    """Usage by key, model and day; to be used on one event loop.

    It is counted in memory, and added to the file with every `write`, in one transaction. What
    cannot be written is kept, and tried again with the next; without a file all is kept in memory.
    A file that is deleted is made again. Servers that hand on what they have counted number what
    they hand on, and the last numbers are written with it: nothing counts twice.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        self._path = path
        self._file: UsageFile | None = None
        self._thread = ThreadPoolExecutor(1, "enginebay-usage")
        self._one_at_a_time = asyncio.Lock()
        self._unwritten: dict[Slot, Used] = {}
        self._being_written: dict[Slot, Used] = {}
        self._marks: dict[str, Mark] = {}
        self._unwritten_marks: dict[str, Mark] = {}
        self._marks_read = False
        self._read_day = ""
        self._read_tokens: dict[str, int] = {}  # of that day, by key, when it was last read
        self.trouble: Trouble | None = None

    def now(self) -> datetime:
        return self._now()

    def add(self, key: str, model: str, used: Used) -> None:
        _count(self._unwritten, Slot(self.day, key, encodable(model)), used)

    def take(self, server: str, number: int, usage: Usage) -> bool:
        """Count what a server has counted, which has handed on so much before; False if it was
        counted already.
        """
        if number <= (self._marks[server].number if server in self._marks else 0):
            return False
        for slot, used in usage.items():
            _count(self._unwritten, slot, used)
        self._marks[server] = self._unwritten_marks[server] = Mark(number, self.day)
        return True

    @property
    def keys_today(self) -> list[str]:
        """The names of keys that have used something today, as of the last `write`."""
        return list(self._read_tokens) if self._read_day == self.day else []

    def tokens_today(self, key: str) -> int:
        day = self.day
        tokens = self._read_tokens.get(key, 0) if self._read_day == day else 0
        for part in (self._unwritten, self._being_written):
            tokens += sum(used.tokens for slot, used in part.items() if slot[:2] == (day, key))
        return tokens

    async def write(self) -> None:
        """Add to the file what is not there yet, and read what is there of today.

        It is finished even if this is cancelled.
        """
        if self._path:
            await asyncio.shield(asyncio.ensure_future(self._write(self._path)))

    async def usage(self, since: date, key: str | None) -> dict[Slot, Used]:
        first = since.isoformat()
        found: dict[Slot, Used] = {}
        async with self._one_at_a_time:
            if self._path:
                path = self._path
                found = await self._tried(lambda: self._open(path).usage(first, key)) or {}
            for slot, used in self._unwritten.items():
                if slot.day >= first and key in (None, slot.key):
                    _count(found, slot, used)
        return dict(sorted(found.items()))

    async def close(self) -> None:
        """Write what there is, and close the file."""
        await self.write()
        if self._path and self._unwritten:
            logger.error("%s was not written: what was used since is lost", self._path)
        self._thread.submit(self._close)
        await asyncio.to_thread(self._thread.shutdown)

    async def _write(self, path: Path) -> None:
        async with self._one_at_a_time:
            day = self.day
            self._being_written, self._unwritten = self._unwritten, {}
            marks, self._unwritten_marks = self._unwritten_marks, {}

            def save() -> tuple[dict[str, int], dict[str, Mark]]:
                file = self._open(path)
                known = {} if self._marks_read else file.marks()
                if self._being_written or marks:
                    file.add(self._being_written, marks)
                return file.tokens(day), known

            read = await self._tried(save)
            if read is None:
                for slot, used in self._being_written.items():
                    _count(self._unwritten, slot, used)
                self._unwritten_marks = {**marks, **self._unwritten_marks}
            else:
                tokens, known = read
                self._read_day, self._read_tokens = day, tokens
                self._marks = {**known, **self._marks}
                self._marks_read = True
                self._recovered()
            self._being_written = {}

    async def _tried(self, work: Callable[[], T]) -> T | None:
        """What `work` comes to on the thread; None if the file cannot be used."""
        try:
            return await asyncio.wrap_future(self._thread.submit(work))
        except (BrokenFileError, OSError, sqlite3.Error, ValueError) as error:
            if not is_locked(error):  # then it can still be read, but not be opened anew
                self._thread.submit(self._close)
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            if self.trouble is None or self.trouble.reason != reason:
                since = self.trouble.since if self.trouble else self.now()
                self.trouble = Trouble(since, reason)
                logger.error(
                    "usage cannot be written to %s: %s; it is kept in memory, and written when "
                    "that is possible again",
                    *(self._path, reason),
                )
            return None

    def _recovered(self) -> None:
        if self.trouble:
            logger.info("usage is written to %s again", self._path)
            self.trouble = None

    def _open(self, path: Path) -> UsageFile:
        """The file, opened anew if it is not there any more; a broken one gets another name."""
        if self._file and not self._file.is_there:
            self._close()
        if self._file is None:
            try:
                self._file = UsageFile(path)
            except BrokenFileError as problem:
                aside = set_aside(path)
                self._file = UsageFile(path)
                logger.error(
                    "%s cannot be used: %s; it is now %s, and usage is in a new file",
                    *(path, problem, aside.name),
                )
        return self._file

    def _close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None


def _count(usage: dict[Slot, Used], slot: Slot, used: Used) -> None:
    if slot in usage:
        usage[slot].add(used)
    else:
        usage[slot] = replace(used)
