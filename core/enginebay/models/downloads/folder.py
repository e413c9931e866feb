"""The folder a repository is downloaded into: which files are present and verified."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from enginebay.config.paths import inside
from enginebay.contract.errors import InvalidRequestError, ServingError
from enginebay.models.downloads.errors import DownloadConflictError, HubError
from enginebay.models.downloads.hub import RemoteFile

_CACHE = ".cache"
_STATE, _STATE_FILE, _LOCK = f"{_CACHE}/enginebay", "download.json", "download.lock"
_WAIT = 0.5  # seconds between two looks at whether a folder is still taken
_BLOCK = 1 << 20
_SAVES = 50  # of the record while its length doubles, so that many files do not cost their square


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A complete download: its folder, the revision that was asked for, its files as they are."""

    path: Path
    revision: str | None
    files: tuple[RemoteFile, ...]


def downloaded(parent: Path, repo_id: str) -> Iterator[Downloaded]:
    """The complete downloads of a repository in this folder, without asking the hub.

    None of which a file is missing, or was changed since it was verified.
    """
    for state_file in sorted(parent.glob(f"*/{_STATE}/{_STATE_FILE}")):
        state = _read(state_file)
        if not state or str(state.get("repo_id")).lower() != repo_id.lower():
            continue
        try:
            folder = Folder(state_file.parents[2], str(state["repo_id"]))
        except ServingError:  # its state is elsewhere, by a link
            continue
        if state.get("complete") and (files := folder.present()):
            revision = state.get("revision")
            yield Downloaded(folder.path, revision if isinstance(revision, str) else None, files)


def state_folder(path: Path) -> Path:
    """Where the state of a download into this folder is kept; it changes when that does."""
    return path / _STATE


def is_unfinished(path: Path) -> bool:
    """Whether a download into this folder goes on, or was interrupted."""
    parts = state_folder(path)
    state = _read(parts / _STATE_FILE)
    return bool(state and state.get("complete") is False) or any(parts.glob("*.part"))


class Folder:
    """`path`, and in `.cache/enginebay` below it the partial files and verification state."""

    def __init__(self, path: Path, repo_id: str, revision: str | None = None) -> None:
        """`DownloadConflictError` for a folder with other files than this repository's."""
        self.path = path
        self._repo_id = repo_id
        self._revision = revision
        self._parts = inside(path, _STATE, "folder_name")
        self._state_file = self._parts / _STATE_FILE
        self._unsaved = 0
        self._read_state()

    def _read_state(self) -> None:
        state = _read(self._state_file)
        if state is None and _has_content(self.path):
            raise DownloadConflictError(
                f"{self.path} exists, and was not downloaded by this server; remove it, or choose "
                "another `folder_name`",
                param="folder_name",
            )
        if state and state.get("repo_id") != self._repo_id:
            raise DownloadConflictError(
                f"{self.path} has the files of {state.get('repo_id')}; remove it, or choose "
                "another `folder_name`",
                param="folder_name",
            )
        files, origins = (state.get(each) if state else None for each in ("files", "origins"))
        self._checked: dict[str, Any] = files if isinstance(files, dict) else {}
        self._origins: dict[str, Any] = origins if isinstance(origins, dict) else {}

    @contextmanager
    def alone(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Create the folder, and let no other process download into it; they may wait for it.

        While another one does, `on_wait` is called again and again, and may raise. The system ends
        a lock with its process, however that ends.
        """
        self._parts.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._parts / _LOCK)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_WAIT)
            except Timeout:
                on_wait()
        try:
            self._read_state()  # which the other one has changed
            yield
        finally:
            lock.release()

    def place(self, file: RemoteFile) -> Path:
        """Where the file goes. `InvalidRequestError` for a file name that is not allowed."""
        try:
            path = inside(self.path, _key(file), "repo_id")
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"the repository has a file that cannot be stored: {error.message}; leave "
                "it out with `exclude`",
                param="repo_id",
            ) from error
        if _spelled(_key(file)).split("/")[0] == _CACHE:
            raise InvalidRequestError(
                f"the repository has a file {file.name!r}, where downloads keep their state; "
                "leave it out with `exclude`",
                param="repo_id",
            )
        return path

    def require_places(self, files: Iterable[RemoteFile], check: Callable[[], None]) -> None:
        """Raise `InvalidRequestError` if one of them cannot be stored, or not next to another.

        `check` is called for each one, and may raise.
        """
        taken: dict[str, RemoteFile] = {}
        for file in files:
            check()
            self.place(file)
            same = taken.setdefault(_spelled(_key(file)), file)
            if same is not file:
                raise _conflict(same, file, "their names differ only in case, or not at all")
        for name, file in taken.items():
            check()
            for folder in PurePosixPath(name).parents:
                if above := taken.get(str(folder)):
                    raise _conflict(above, file, "the first name is also that of a folder")

    def has(self, file: RemoteFile) -> bool:
        """Whether the file is present and unchanged since it was verified."""
        seen = self._seen(file)
        return seen is not None and self._checked.get(_key(file)) == seen

    def present(self) -> tuple[RemoteFile, ...]:
        """The files that were verified; none if one is missing or was changed."""
        try:
            files = [
                RemoteFile(str(self._origins.get(name, name)), int(size), str(digest), name)
                for name, (digest, size, _) in self._checked.items()
            ]
        except (TypeError, ValueError):  # edited by someone
            return ()
        return tuple(files) if all(map(self.has, files)) else ()

    def part(self, file: RemoteFile) -> Path:
        """Where the partial file is stored."""
        named = f"{file.digest} {file.name}".encode(errors="surrogatepass")
        return self._parts / f"{hashlib.sha256(named).hexdigest()[:32]}.part"

    def missing(self, file: RemoteFile) -> int:
        """How many bytes are still missing."""
        if self.has(file):
            return 0
        part = self.part(file)
        return max(0, file.size - (part.stat().st_size if part.exists() else 0))

    def save(self) -> None:
        """Record which files are verified, and that the download is unfinished."""
        self._write_state()

    def check(self, file: RemoteFile, on_block: Callable[[], None]) -> None:
        """Verify the partial file, or remove it and raise `HubError`. `on_block` may raise."""
        part = self.part(file)
        size = part.stat().st_size
        digest = hashlib.sha256() if len(file.digest) == 64 else hashlib.sha1(b"blob %d\0" % size)
        with part.open("rb") as source:
            while block := source.read(_BLOCK):
                digest.update(block)
                on_block()
        if size != file.size or digest.hexdigest() != file.digest:
            part.unlink()
            raise HubError(
                f"{file.name} is incomplete or does not match its hash ({size} of {file.size} "
                "bytes); start the download again"
            )

    def keep(self, file: RemoteFile) -> None:
        """Move the verified partial file into place and record it as verified."""
        path = self.place(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.part(file).replace(path)
        self._checked[_key(file)] = self._seen(file)
        self._origins[_key(file)] = file.name
        self._unsaved += 1
        if self._unsaved * _SAVES > len(self._checked):
            self.save()

    def finish(self) -> None:
        """All has come: remove partial files that are no longer wanted."""
        for part in self._parts.glob("*.part"):
            part.unlink()
        self._write_state(complete=True)

    def _seen(self, file: RemoteFile) -> list[Any] | None:
        try:
            status = self.place(file).stat()
        except OSError:
            return None
        return [file.digest, status.st_size, status.st_mtime_ns]

    def _write_state(self, *, complete: bool = False) -> None:
        state = {
            "repo_id": self._repo_id,
            "revision": self._revision,
            "complete": complete,
            "files": dict(self._checked),
            "origins": dict(self._origins),
        }
        unfinished = self._state_file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(state, indent=1), encoding="utf-8")
        unfinished.replace(self._state_file)
        self._unsaved = 0


def _has_content(path: Path) -> bool:
    """Whether something is there, beside what a download that has just begun leaves."""
    if not path.is_dir():
        return path.exists()
    return any(each.name != _CACHE for each in path.iterdir())


def _spelled(name: str) -> str:
    """Equal for names that are one file on systems that ignore case or store accents apart."""
    return unicodedata.normalize("NFC", name).casefold()


def _conflict(first: RemoteFile, second: RemoteFile, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the repository has files {first.name!r} and {second.name!r}, which cannot be stored in "
        f"one folder: {reason}; leave one out with `exclude`",
        param="repo_id",
    )


def _key(file: RemoteFile) -> str:
    """Where a file is in the folder."""
    return file.stored_as or file.name


def _read(state_file: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None
