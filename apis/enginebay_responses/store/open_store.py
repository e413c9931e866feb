"""The store that the config asks for."""

import logging
import sqlite3
from pathlib import Path

from enginebay.sqlite_file import BrokenFileError, set_aside
from enginebay_responses.settings import ResponsesSettings
from enginebay_responses.store.answers_file import AnswersFile
from enginebay_responses.store.memory_store import MemoryStore
from enginebay_responses.store.retention import Limits
from enginebay_responses.store.sqlite_store import SqliteStore
from enginebay_responses.store.store import ResponseStore

logger = logging.getLogger(__name__)


def open_store(config: ResponsesSettings, base: Path) -> ResponseStore | None:
    """The store for answers of `/v1/responses`; None if they are not kept.

    `base`: the folder that the path of a file is relative to. There is a store whatever is wrong
    with the file: a broken one gets another name, and if that is no help, answers are in memory.
    """
    if config.store == "off":
        return None
    limits = Limits(
        entries=config.store_entries,
        bytes=config.store_bytes,
        seconds=config.store_days * 86_400,
    )
    if config.store == "memory":
        return MemoryStore(limits)
    path = base / Path(config.store).expanduser()
    try:
        try:
            return _in_file(path, limits)
        except BrokenFileError as problem:
            aside = set_aside(path)
            store = _in_file(path, limits)
            logger.error(
                "%s cannot be used: %s; it is now %s, and answers of /v1/responses are in a new "
                "file",
                *(path, problem, aside.name),
            )
            return store
    except (BrokenFileError, OSError, sqlite3.Error) as problem:
        logger.error(
            "%s cannot be used: %s; answers of /v1/responses are in memory, and end with the "
            "server. Make it a file that this server may write, or set responses.store to "
            "another one",
            *(path, problem),
        )
        return MemoryStore(limits)


def _in_file(path: Path, limits: Limits) -> ResponseStore:
    file = AnswersFile(path)
    try:
        return SqliteStore(file, limits)
    except BaseException:
        file.close()
        raise
