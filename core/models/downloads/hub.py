"""What is asked of a Hugging Face hub: which files a repository has, and the bytes of one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from core.contract.errors import InvalidRequestError
from core.models.downloads.errors import HubError, RepositoryForbiddenError, RepositoryNotFoundError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_TIMEOUT = 10.0  # seconds until the hub must say something
_NOT_SATISFIABLE = 416
_LARGEST = 50_000_000_000  # bytes; larger files a hub gives to clients of Xet only
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

OnBytes = Callable[[int], None]
"""`on_bytes(count)`: so many have come; below 0, so many are gone again. May raise to stop it."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its name there, its size in bytes, and what its content hashes to.

    `digest`: SHA-256 (64 digits) of the content, or git's SHA-1 of it as a blob (40 digits).
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a repository at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


class _UnfitPartError(Exception):
    """What has come of a file is not the beginning of it."""


class Hub:
    """One repository of the hub that `HF_ENDPOINT` names, else of huggingface.co.

    `token`: None for what `HF_TOKEN` or a login of huggingface_hub have set. It goes to the hub
    only, not to where that redirects to. Every method blocks, and raises a `ServingError`.
    """

    def __init__(self, repo_id: str, revision: str | None, token: str | None) -> None:
        self._repo_id = repo_id
        self._revision = revision
        self._token = token
        self._endpoint = os.environ.get("HF_ENDPOINT") or None

    def snapshot(self) -> Snapshot:
        """What there is to download, all from one commit."""
        from huggingface_hub import HfApi

        with self._in_words():
            info = HfApi(self._endpoint, token=self._token).model_info(
                self._repo_id, revision=self._revision, files_metadata=True, timeout=_TIMEOUT
            )
        commit = info.sha or ""
        if not _COMMIT.fullmatch(commit):
            raise HubError(f"the hub names no commit of {self._repo_id}")
        return Snapshot(commit, tuple(map(self._file, info.siblings or ())))

    def fetch(self, file: RemoteFile, commit: str, part: Path, on_bytes: OnBytes) -> None:
        """Append what `part` lacks of the file; connections that break are taken up again.

        `on_bytes` is told of the bytes that `part` had already, too. A part that cannot become the
        file is removed.
        """
        had = part.stat().st_size if part.exists() else 0
        if had == file.size:
            part.touch()
            on_bytes(had)
            return
        if had > file.size:
            part.unlink()
        try:
            with self._in_words():
                self._append(file, commit, part, on_bytes)
        except _UnfitPartError as error:
            part.unlink()
            raise HubError(
                f"{file.name} does not come with the {file.size} bytes that the hub says it has; "
                "start the download again"
            ) from error

    def _append(self, file: RemoteFile, commit: str, part: Path, on_bytes: OnBytes) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(self._repo_id, file.name, revision=commit, endpoint=self._endpoint)
        with part.open("ab") as target:
            try:
                http_get(
                    url,
                    target,
                    resume_size=target.tell(),
                    headers=build_hf_headers(token=self._token),
                    expected_size=file.size,
                    displayed_filename=file.name,
                    tqdm_class=partial(_Bar, on_bytes),  # type: ignore[arg-type]  # only called
                )
            except HfHubHTTPError as error:
                if error.response.status_code == _NOT_SATISFIABLE:
                    raise _UnfitPartError from error
                raise
            except OSError as error:
                if error.errno is None:  # the library's own, of sizes that do not fit
                    raise _UnfitPartError from error
                raise

    def _file(self, sibling: Any) -> RemoteFile:
        digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if not isinstance(sibling.size, int) or sibling.size < 0:
            raise HubError(f"the hub tells no size of {sibling.rfilename} in {self._repo_id}")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise HubError(f"the hub tells no hash of {sibling.rfilename} in {self._repo_id}")
        return RemoteFile(sibling.rfilename, sibling.size, digest)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Say what the errors of the library mean."""
        import httpx2
        from huggingface_hub import errors

        name, revision = self._repo_id, self._revision
        try:
            yield
        except errors.HFValidationError as error:
            raise InvalidRequestError(str(error), param="repo_id") from error
        except errors.GatedRepoError as error:
            raise RepositoryForbiddenError(
                f"{name} is gated: accept its terms on the hub's page of it, and send the token of "
                "the account that did, or set HF_TOKEN",
                param="token",
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise RepositoryNotFoundError(
                f"the hub has no repository {name}, or none that this token may see; for a "
                "private one send `token`, or set HF_TOKEN",
                param="repo_id",
            ) from error
        except errors.RevisionNotFoundError as error:
            raise RepositoryNotFoundError(
                f"{name} has no revision {revision!r}", param="revision"
            ) from error
        except errors.OfflineModeIsEnabled as error:
            raise HubError("HF_HUB_OFFLINE is set, so nothing can be downloaded") from error
        except errors.HfHubHTTPError as error:
            raise self._refusal(error) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise HubError(
                f"the hub cannot be reached ({type(error).__name__}: {error}); what has come is "
                "kept, so start the download again"
            ) from error
        except (TypeError, KeyError, ValueError) as error:
            raise HubError(f"the hub's answer about {name} cannot be read: {error}") from error

    def _refusal(self, error: HfHubHTTPError) -> HubError | RepositoryForbiddenError:
        status = error.response.status_code
        if status in (401, 403):
            return RepositoryForbiddenError(
                f"the hub refuses {self._repo_id} ({status}); send a token that may read it",
                param="token",
            )
        return HubError(f"the hub answers {status} when asked for {self._repo_id}")


def require_plain(file: RemoteFile) -> None:
    """Raise unless a hub gives the file out over plain HTTP."""
    if file.size > _LARGEST:
        raise InvalidRequestError(
            f"{file.name} is larger than 50 GB, which hubs give to Xet clients only; leave it out "
            "by `exclude`, and get it with the command line of huggingface_hub",
            param="exclude",
        )


class _Bar:
    """What a bar of tqdm is to the library that fills it."""

    def __init__(self, on_bytes: OnBytes, *, initial: int = 0, **_: object) -> None:
        self.update = on_bytes
        self.update(initial)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
