"""The saved states of one model on disk, in a folder that other models and servers use as well."""

import logging
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote

from enginebay.contract.errors import BackendUnavailableError
from enginebay.engine.kv_store.seals import DamagedError
from enginebay.engine.kv_store.state_file import (
    ENDING,
    UNFINISHED,
    ForeignError,
    Header,
    StateFiles,
)

logger = logging.getLogger(__name__)

_RANDOM = 16
_NAME = re.compile(rf"[0-9a-f]{{{2 * _RANDOM}}}")
"""Of the files, without their ending."""

_SPARE = 1 << 30
"""Bytes of the disk that are left to others; of small ones a twentieth."""

_ABANDONED = 600.0
"""Seconds after which a file that was not finished is nobody's any more."""


class StateFolder:
    """Files of states that fit `kind`, below `root`; a file's time is that of its last use.

    All states below `root` together take at most `limit` bytes: the least recently used go first,
    of whichever model; so they do when the disk is nearly full. Others may delete files at any
    time. What else is there is left alone.
    """

    def __init__(
        self, root: Path, name: str, kind: Mapping[str, str], files: StateFiles, limit: int
    ) -> None:
        """`name` is that of the model's file. `BackendUnavailableError` if it cannot be made."""
        self._root = root
        self._folder = root / quote(name, safe=" ()+,=@").replace(".", "%2E", name[:1] == ".")
        self._kind = dict(kind)
        self._files = files
        self._limit = limit
        try:
            self._make()
        except OSError as error:
            raise BackendUnavailableError(
                f"loading.cache_dir: {self._folder} cannot be made: {error.strerror}"
            ) from error
        self._told: set[str] = set()

    def scan(self) -> Iterator[tuple[Path, Header]]:
        """The files that fit, the least recently used first; others are counted in the log."""
        self._remove_abandoned()
        ignored: Counter[str] = Counter()
        for _, path, _ in sorted(_listed([self._folder], ENDING)):
            try:
                header = self._files.header(path)
            except (ForeignError, DamagedError) as error:
                ignored[str(error)] += 1
            except Exception as error:
                ignored[f"it cannot be read: {_reason(error)}"] += 1
            else:
                if other := self._differences(header.kind):
                    ignored[f"it is of another {other}"] += 1
                else:
                    yield path, header
        for reason, number in ignored.items():
            what = "a saved state is" if number == 1 else f"{number} saved states are"
            each = "" if number == 1 else "each "
            logger.warning("%s: %s ignored, %sbecause %s", self._folder, what, each, reason)

    def write(self, key: bytes, tokens: bytes, state: memoryview) -> Path | None:
        """Save a state; None, and said once, if there is no room or it cannot be written."""
        header = Header(self._kind, key, tokens, state.nbytes)
        needed = state.nbytes + 2 * len(tokens) + 4096
        if needed > self._limit:
            self._tell("size", "a sequence of %d bytes is larger than cache_disk", needed)
            return None
        path = self._folder / f"{secrets.token_hex(_RANDOM)}{ENDING}"
        try:
            self._make()
            self._make_room(needed)
            self._files.write(path, header, state)
        except Exception as error:  # its thread goes on, whatever it is
            self._tell(str(type(error)), "a state could not be saved: %s", _reason(error))
            return None
        return path

    def read(self, path: Path, key: bytes, tokens: bytes, nbytes: int) -> memoryview | None:
        """A state that was found by `scan` or written; None if it is gone or damaged.

        A damaged file is deleted.
        """
        try:
            state = self._files.state(path, Header(self._kind, key, tokens, nbytes))
        except FileNotFoundError:
            return None
        except (DamagedError, ForeignError) as error:
            logger.warning("%s: the saved state is damaged and was deleted: %s", path, error)
            self.delete(path)
            return None
        except Exception as error:  # its thread goes on, whatever it is
            self._tell(str(type(error)), "a saved state could not be read: %s", _reason(error))
            return None
        self.touch(path)
        return state

    def touch(self, path: Path) -> None:
        """Note that a file was used."""
        with suppress(OSError):
            os.utime(path)

    def delete(self, path: Path) -> None:
        """Delete a file that may be gone already."""
        with suppress(OSError):
            path.unlink()

    def nbytes(self) -> int:
        """Bytes of the model's files."""
        return sum(size for _, _, size in _listed([self._folder], ENDING))

    def _make(self) -> None:
        """Make the folder, also after somebody has deleted it."""
        for folder in (self._root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _differences(self, kind: Mapping[str, str]) -> str:
        parts = [name for name in {**self._kind, **kind} if self._kind.get(name) != kind.get(name)]
        return " and another ".join(parts)

    def _make_room(self, needed: int) -> None:
        there = sorted(_listed(_folders(self._root), ENDING))
        total = sum(size for _, _, size in there)
        disk = shutil.disk_usage(self._root)
        spare = min(_SPARE, disk.total // 20)
        limit = min(self._limit, total + disk.free - spare)
        if needed > limit:  # then nothing need be deleted for it
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        for _, path, size in there:
            if total + needed <= limit:
                break
            self.delete(path)
            total -= size

    def _remove_abandoned(self) -> None:
        for changed, path, _ in _listed(_folders(self._root), UNFINISHED):
            if time.time() - changed / 1e9 > _ABANDONED:
                self.delete(path)

    def _tell(self, what: str, message: str, *values: object) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning(f"%s: {message}", self._folder, *values)


def _folders(root: Path) -> list[Path]:
    """Those of the models."""
    with suppress(OSError), os.scandir(root) as there:
        return [Path(entry) for entry in there if entry.is_dir()]
    return []


def _listed(folders: Iterable[Path], ending: str) -> Iterator[tuple[int, Path, int]]:
    """Time, path and size of the files in these that are named as ours, and are files.

    Whatever else users keep there is none of our business, and to open a pipe may take for ever.
    """
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as there:
            for entry in there:
                name, dot, rest = entry.name.partition(".")
                if dot + rest == ending and _NAME.fullmatch(name):
                    with suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        if S_ISREG(about.st_mode):
                            yield about.st_mtime_ns, Path(entry), about.st_size


def _reason(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return said or f"{type(error).__name__}: {error}"
