"""One download from start to finish, on blocking threads."""

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from enginebay.config.paths import inside
from enginebay.contract.errors import InvalidRequestError, ServingError
from enginebay.models.downloads.choose import size_text
from enginebay.models.downloads.errors import (
    DiskFullError,
    DownloadConflictError,
    DownloadTimeoutError,
)
from enginebay.models.downloads.folder import Folder
from enginebay.models.downloads.hub import Hub, RemoteFile
from enginebay.models.downloads.resolve import Kind, Resolved, Wanted, resolve

logger = logging.getLogger(__name__)

_FILES_AT_ONCE = 4
_STEPS = 200  # reports of one download, beside those at the end of each file
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Places:
    """Where downloads go, and the maximum size of one in bytes; None is unlimited."""

    models: Path
    loras: Path
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """`completed` of `total` bytes, and this many of the files, are present and verified.

    `file` is the one that just changed. When all are complete, `path` is the folder. `waiting`:
    another process downloads into the folder, and this one goes on after it.
    """

    file: str
    completed: int
    total: int
    completed_files: int
    files: int
    path: Path | None = None
    waiting: bool = False


class StoppedError(Exception):
    """The download was told to stop."""

    def __init__(self) -> None:
        super().__init__("the download was stopped; what arrived is kept")


class Control:
    """Stops a download from another thread, or at its timeout."""

    def __init__(self, timeout: float | None = None) -> None:
        self._stopped = threading.Event()
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def stop(self) -> None:
        """Stop it at the next bytes that arrive."""
        self._stopped.set()

    @property
    def left(self) -> float | None:
        """Seconds until its timeout; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise if it must stop."""
        if self.stopped:
            raise StoppedError
        if self.left == 0:
            raise self.too_late()

    def too_late(self) -> DownloadTimeoutError:
        """Return the error for a download that has reached its timeout."""
        return DownloadTimeoutError(
            "the download exceeded its `timeout`; what arrived is kept, so start it again",
            param="timeout",
        )


def download(
    wanted: Wanted,
    places: Places,
    report: Callable[[Progress], None],
    control: Control,
    resolved: Resolved | None = None,
) -> Path:
    """Download what is wanted, or what is still missing; returns its absolute folder.

    `resolved`: what that was found to be, if it has been asked for already.
    `report` is called on several threads, one at a time. Failures raise a `ServingError` or
    `StoppedError`; what has arrived by then is kept for the next attempt.
    """
    control.check()
    try:
        found = resolved or resolve(wanted)
        control.check()
        kind = wanted.kind or _kind(found.files)
        folder = _folder(places.loras if kind == "lora" else places.models, wanted, found)
        folder.require_places(found.files, control.check)
        _check_size(folder, found.files, places.max_bytes, control)
        with folder.alone(_Waiting(folder, found.files, report, control)):
            folder.save()
            try:
                _Run(found.hub, found.commit, folder, found.files, report, control).run()
            except BaseException:
                folder.save()
                raise
            folder.finish()
    except OSError as error:
        raise _explained(error) from error
    return folder.path


class _Waiting:
    """Says once that another process has the folder, and hears of a stop meanwhile."""

    def __init__(
        self,
        folder: Folder,
        files: Sequence[RemoteFile],
        report: Callable[[Progress], None],
        control: Control,
    ) -> None:
        self._folder = folder
        self._files = files
        self._report = report
        self._control = control
        self._said = False

    def __call__(self) -> None:
        self._control.check()
        if not self._said:
            self._said = True
            logger.info("another process downloads into %s; waiting for it", self._folder.path)
            total = sum(file.size for file in self._files)
            files = len(self._files)
            self._report(Progress(self._files[0].name, 0, total, 0, files, waiting=True))


class _Run:
    """Fetches the files of a download, several at once; the first error stops them all."""

    def __init__(
        self,
        hub: Hub,
        commit: str,
        folder: Folder,
        files: Sequence[RemoteFile],
        report: Callable[[Progress], None],
        control: Control,
    ) -> None:
        self._hub = hub
        self._commit = commit
        self._folder = folder
        self._files = files
        self._report = report
        self._control = control
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._missing = [file for file in files if not self._has(file)]
        self._bytes = dict.fromkeys((file.name for file in self._missing), 0)
        self._total = sum(file.size for file in files)
        self._completed = self._total - sum(file.size for file in self._missing)
        self._there = len(files) - len(self._missing)
        self._told = -1

    def _has(self, file: RemoteFile) -> bool:
        self._control.check()
        return self._folder.has(file)

    def run(self) -> None:
        """Fetch what is missing."""
        with self._lock:
            self._tell(self._files[0], always=True)
        with ThreadPoolExecutor(_FILES_AT_ONCE, "enginebay-file") as threads:
            running = [threads.submit(self._get, file) for file in self._missing]
        errors = [error for work in running if (error := work.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, StoppedError)):
            raise error

    def _get(self, file: RemoteFile) -> None:
        try:
            self._check()
            self._hub.fetch(
                file, self._commit, self._folder.part(file), lambda count: self._add(file, count)
            )
            self._folder.check(file, self._check)
            with self._lock:
                self._folder.keep(file)
                self._count(file, file.size - self._bytes[file.name])
                self._there += 1
                self._tell(file, always=True)
        except BaseException:
            self._failed.set()
            raise

    def _check(self) -> None:
        self._control.check()
        if self._failed.is_set():
            raise StoppedError

    def _add(self, file: RemoteFile, count: int) -> None:
        self._check()
        with self._lock:
            self._count(file, count)
            self._tell(file)

    def _count(self, file: RemoteFile, count: int) -> None:
        self._bytes[file.name] += count
        self._completed += count

    def _tell(self, file: RemoteFile, *, always: bool = False) -> None:
        """With the lock held, so that every file is told of and all of it in order."""
        step = _STEPS * self._completed // (self._total or 1)
        if step == self._told and not always:
            return
        self._told = step
        self._report(
            Progress(file.name, self._completed, self._total, self._there, len(self._files))
        )


def _folder(base: Path, wanted: Wanted, found: Resolved) -> Folder:
    """The folder of the download. If another owner's repository has its name, with the owner."""
    name = wanted.folder_name or found.folder
    place = partial(Folder, repo_id=wanted.repo_id, revision=found.revision)
    try:
        return place(inside(base, name, "folder_name"))
    except DownloadConflictError:
        if wanted.folder_name or wanted.quant is None:
            raise
        owner = wanted.repo_id.partition("/")[0]
        return place(inside(base, f"{owner}_{name}", "folder_name"))


def _kind(files: Sequence[RemoteFile]) -> Kind:
    return "lora" if any(file.name == "adapter_config.json" for file in files) else "model"


def _check_size(
    folder: Folder, files: Sequence[RemoteFile], max_bytes: int | None, control: Control
) -> None:
    total = sum(file.size for file in files)
    if max_bytes is not None and total > max_bytes:
        raise InvalidRequestError(
            f"these files take {size_text(total)}, but `max_download_bytes` in the config "
            f"allows {size_text(max_bytes)}; choose a smaller `quant`, leave some out "
            "with `include` or `exclude`, or raise that limit",
            param="include",
        )
    missing = 0
    for file in files:
        control.check()
        missing += folder.missing(file)
    existing = next(path for path in (folder.path, *folder.path.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise DiskFullError(
            f"{size_text(missing)} left to download, but {existing} has room for {size_text(free)}"
        )


def _explained(error: OSError) -> ServingError:
    if error.errno in _NO_ROOM:
        return DiskFullError("the disk is full; free some space and start the download again")
    if error.errno in _IN_THE_WAY:
        return DownloadConflictError(
            f"{error.filename2 or error.filename} is in the way; remove it, or choose another "
            "`folder_name`",
            param="folder_name",
        )
    return ServingError(f"the files cannot be written: {error}")
