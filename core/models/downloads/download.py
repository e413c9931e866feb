"""One download from start to finish, on blocking threads."""

import errno
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal

from core.config.paths import inside
from core.contract.errors import InvalidRequestError, ServingError
from core.models.downloads.choose import Form, choices, choose, folder_name, size_text
from core.models.downloads.errors import (
    DiskFullError,
    DownloadConflictError,
    DownloadTimeoutError,
)
from core.models.downloads.folder import Folder
from core.models.downloads.hub import Hub, RemoteFile, Snapshot

_FILES_AT_ONCE = 4
_STEPS = 200  # reports of one download, beside those at the end of each file
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Kind = Literal["model", "lora"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to download.

    `kind`: a LoRA or a model; None: detect it from the files. `folder_name`: where, below the
    folder of its kind; None for the repository's name. `include` and `exclude` are patterns of file
    names, where `*` also matches `/`; without `include` all files are meant. `quant`: in place of
    them, the files of one model, by its quant, file or branch; "" for the recommended one, in this
    `form` or any. `timeout`: seconds after which it stops, finished or not.
    """

    repo_id: str
    kind: Kind | None = None
    folder_name: str | None = None
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    quant: str | None = None
    form: Form | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where downloads go, and the maximum size of one in bytes; None is unlimited."""

    models: Path
    loras: Path
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """`completed` of `total` bytes, and this many of the files, are present and verified.

    `file` is the one that just changed. When all are complete, `path` is the folder.
    """

    file: str
    completed: int
    total: int
    completed_files: int
    files: int
    path: Path | None = None


class StoppedError(Exception):
    """The download was told to stop."""


class Control:
    """Stops a download from another thread, or at its timeout."""

    def __init__(self, timeout: float | None = None) -> None:
        self._stopped = threading.Event()
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def stop(self) -> None:
        """Stop it at the next bytes that arrive."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise if it must stop."""
        if self.stopped:
            raise StoppedError
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DownloadTimeoutError(
                "the download exceeded its `timeout`; what arrived is kept, so start it again",
                param="timeout",
            )


def download(
    wanted: Wanted, places: Places, report: Callable[[Progress], None], control: Control
) -> Path:
    """Download what is wanted, or what is still missing; returns its absolute folder.

    `report` is called on several threads, one at a time. Failures raise a `ServingError` or
    `StoppedError`; what has arrived by then is kept for the next attempt.
    """
    control.check()
    try:
        found = _files_of(wanted) if wanted.quant is None else _model_of(wanted, wanted.quant)
        kind = wanted.kind or _kind(found.files)
        folder = _folder(places.loras if kind == "lora" else places.models, wanted, found)
        for file in found.files:
            folder.place(file)
        _check_size(folder, found.files, places.max_bytes)
        folder.begin()
        _Run(found.hub, found.commit, folder, found.files, report, control).run()
        folder.finish()
    except OSError as error:
        raise _explained(error) from error
    return folder.path


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
        self._bytes = {file.name: file.size if folder.has(file) else 0 for file in files}
        self._total = sum(file.size for file in files)
        self._there = sum(map(folder.has, files))
        self._told = -1

    def run(self) -> None:
        """Fetch what is missing."""
        self._tell(self._files[0], always=True)
        missing = [file for file in self._files if not self._folder.has(file)]
        with ThreadPoolExecutor(_FILES_AT_ONCE, "enginebay-file") as threads:
            running = [threads.submit(self._get, file) for file in missing]
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
                self._bytes[file.name] = file.size
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
            self._bytes[file.name] += count
        self._tell(file)

    def _tell(self, file: RemoteFile, *, always: bool = False) -> None:
        with self._lock:
            completed = sum(self._bytes.values())
            step = _STEPS * completed // (self._total or 1)
            if step == self._told and not always:
                return
            self._told = step
            self._report(Progress(file.name, completed, self._total, self._there, len(self._files)))


@dataclass(frozen=True, slots=True)
class _Found:
    """The files to download, and the folder that they go to unless another one is named."""

    hub: Hub
    revision: str | None
    commit: str
    files: Sequence[RemoteFile]
    folder: str


def _files_of(wanted: Wanted) -> _Found:
    hub = Hub(wanted.repo_id, wanted.revision, wanted.token)
    snapshot = hub.snapshot()
    folder = wanted.repo_id.rpartition("/")[2]
    return _Found(hub, wanted.revision, snapshot.commit, _selected(snapshot, wanted), folder)


def _model_of(wanted: Wanted, quant: str) -> _Found:
    """The model of that quant; if there is none, that of the branch of this name."""
    repo_id, revision = wanted.repo_id, wanted.revision
    hub = Hub(repo_id, revision, wanted.token)
    snapshot = hub.snapshot()
    try:
        choice = choose(repo_id, snapshot.files, quant, wanted.form)
    except InvalidRequestError as error:
        if revision is not None or (choices(repo_id, snapshot.files, wanted.form) and not quant):
            raise
        try:
            branches = hub.branches()
        except ServingError:  # the first error says more
            raise error from None
        if quant not in branches:
            if branches:
                error.message += f"; its branches are {', '.join(branches)}"
            raise
        hub, revision = Hub(repo_id, quant, wanted.token), quant
        snapshot = hub.snapshot()
        choice = choose(repo_id, snapshot.files, "", wanted.form)
    folder = folder_name(repo_id, choice, revision)
    return _Found(hub, revision, snapshot.commit, choice.files, folder)


def _folder(base: Path, wanted: Wanted, found: _Found) -> Folder:
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


def _selected(snapshot: Snapshot, wanted: Wanted) -> list[RemoteFile]:
    files = [
        file
        for file in snapshot.files
        if any(fnmatchcase(file.name, pattern) for pattern in wanted.include or ("*",))
        and not any(fnmatchcase(file.name, pattern) for pattern in wanted.exclude)
    ]
    if not files:
        raise InvalidRequestError(
            f"`include` and `exclude` leave no file of {wanted.repo_id}; it has "
            f"{len(snapshot.files)} files",
            param="include",
        )
    return files


def _kind(files: Sequence[RemoteFile]) -> Kind:
    return "lora" if any(file.name == "adapter_config.json" for file in files) else "model"


def _check_size(folder: Folder, files: Sequence[RemoteFile], max_bytes: int | None) -> None:
    total = sum(file.size for file in files)
    if max_bytes is not None and total > max_bytes:
        raise InvalidRequestError(
            f"these files take {size_text(total)}, but `max_download_bytes` in the config "
            f"allows {size_text(max_bytes)}; choose a smaller `quant`, leave some out "
            "with `include` or `exclude`, or raise that limit",
            param="include",
        )
    missing = sum(map(folder.missing, files))
    existing = next(path for path in (folder.path, *folder.path.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise DiskFullError(
            f"{size_text(missing)} left to download, but {existing} has room for {size_text(free)}"
        )


def _explained(error: OSError) -> ServingError:
    if error.errno in _NO_ROOM:
        return DiskFullError("the disk is full; free some space and start the download again")
    return ServingError(f"the files cannot be written: {error}")
