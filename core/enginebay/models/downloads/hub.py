"""Hugging Face hub client: lists a repository's files and fetches their bytes.

Bytes come over HTTP or from the hub's Xet store, through huggingface_hub and hf_xet. Their own
`snapshot_download` does less: it restarts unfinished files, does not verify hashes over HTTP, and a
Xet file cannot be stopped, as errors of its progress bar are lost.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads.errors import HubError, in_words

logger = logging.getLogger(__name__)

_TIMEOUT = 10.0  # seconds until the hub must respond
_TRIES, _PAUSE = 6, 1.0  # connections that bring no byte, and seconds between them
_OK, _NOT_SATISFIABLE = 200, 416
_PASSING = (408, 429, 500, 502, 503, 504)  # transient statuses
_LARGEST_OVER_HTTP = 50_000_000_000  # bytes; larger files a hub gives out over Xet only
_SETTINGS = re.compile(r"\.yml[. ]*$", re.IGNORECASE)  # Windows drops dots and blanks at the end
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = 64  # digits

OnBytes = Callable[[int], None]
"""`on_bytes(count)`: bytes received; negative if bytes were discarded. May raise to stop it."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its name, its size in bytes, and its hash.

    `digest`: SHA-256 (64 digits) of the content, or git's SHA-1 of it as a blob (40 digits).
    `stored_as`: its name in the folder of the download, where that is another one.
    """

    name: str
    size: int
    digest: str
    stored_as: str = ""

    @property
    def large(self) -> bool:
        """Whether it is stored outside the git repository (LFS)."""
        return len(self.digest) == _SHA256


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a repository at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


class _UnfitPartError(Exception):
    """The partial file is not a prefix of the file."""


class Hub:
    """One repository of the hub that `HF_ENDPOINT` names, else of huggingface.co.

    `token`: None for what `HF_TOKEN` or a login of huggingface_hub have set. It is sent to the hub
    only, not to redirect targets. Every method blocks, and raises a `ServingError`.
    """

    def __init__(self, repo_id: str, revision: str | None, token: str | None) -> None:
        self._repo_id = repo_id
        self._revision = revision
        self._token = token
        self._endpoint = hub_endpoint()

    def snapshot(self) -> Snapshot:
        """The files to download, all from one commit.

        Files that end in .yml are left out, since they may be settings of this server.
        """
        from huggingface_hub import HfApi

        with in_words(self._repo_id, self._revision):
            info = HfApi(self._endpoint, token=self._token).model_info(
                self._repo_id, revision=self._revision, files_metadata=True, timeout=_TIMEOUT
            )
            commit = info.sha or ""
            if not _COMMIT.fullmatch(commit):
                raise HubError(f"the hub returned no commit for {self._repo_id}")
            there = tuple(map(self._file, info.siblings or ()))
            kept = tuple(file for file in there if not _SETTINGS.search(file.name))
            if kept != there:
                logger.info("%s: files that end in .yml are not downloaded", self._repo_id)
            return Snapshot(commit, kept)

    def branches(self) -> list[str]:
        """The branches of the repository beside `main`, which may hold other models."""
        with in_words(self._repo_id, None):
            refs = get_json(
                f"{self._endpoint}/api/models/{self._repo_id}/refs", hub_headers(self._token)
            )
            return [each["name"] for each in refs["branches"] if each["name"] != "main"]

    def small_file(self, file: RemoteFile, commit: str) -> bytes:
        """The content of a file, which is small and not checked."""
        from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status

        with in_words(self._repo_id, self._revision):
            url = hf_hub_url(self._repo_id, file.name, revision=commit, endpoint=self._endpoint)
            answer = get_session().get(url, headers=hub_headers(self._token), timeout=_TIMEOUT)
            hf_raise_for_status(answer)
            return answer.content

    def fetch(self, file: RemoteFile, commit: str, part: Path, on_bytes: OnBytes) -> None:
        """Append what is missing to `part`; broken connections are resumed.

        `on_bytes` also reports the bytes that `part` already had. A part that cannot be completed
        is removed.
        """
        try:
            with in_words(self._repo_id, self._revision), part.open("ab") as target:
                if target.tell() > file.size:
                    _empty(target)
                on_bytes(target.tell())
                failures = 0
                while (had := target.tell()) < file.size:
                    try:
                        self._append(file, commit, target, on_bytes)
                    except OSError as error:
                        failures = 1 if target.tell() > had else failures + 1
                        if failures == _TRIES or not _passes(error):
                            raise
                        time.sleep(_PAUSE * failures)
                        on_bytes(0)
        except _UnfitPartError as error:
            part.unlink()
            raise HubError(
                f"{file.name} is not the {file.size} bytes that the hub reports; start "
                "the download again"
            ) from error

    def _append(self, file: RemoteFile, commit: str, target: BinaryIO, on_bytes: OnBytes) -> None:
        """Append what one connection delivers; a `ConnectionError` if that is incomplete."""
        import httpx2
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._repo_id, file.name, revision=commit, endpoint=self._endpoint)
        try:
            xet_hash = self._xet_hash(file, url)
            blocks = (
                self._over_xet(xet_hash, file, commit, target.tell())
                if xet_hash
                else self._over_http(url, file, target, on_bytes)
            )
            with closing(blocks):
                for block in blocks:
                    target.write(block)
                    on_bytes(len(block))
                    if target.tell() > file.size:
                        raise _UnfitPartError
        except (httpx2.TransportError, RuntimeError) as error:  # the latter are hf_xet's
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        if xet_hash and target.tell() < file.size:  # hf_xet's way to say that it cannot go on
            raise ConnectionError("the Xet store stopped sending")
        if target.tell() != file.size:
            raise _UnfitPartError

    def _xet_hash(self, file: RemoteFile, url: str) -> str | None:
        """The file's hash in the Xet store; None to fetch it over HTTP."""
        from huggingface_hub import constants, get_hf_file_metadata

        if not file.large or constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
            return None
        metadata = get_hf_file_metadata(
            url, token=self._token, timeout=_TIMEOUT, endpoint=self._endpoint
        )
        return metadata.xet_file_data.file_hash if metadata.xet_file_data else None

    def _over_xet(
        self, xet_hash: str, file: RemoteFile, commit: str, start: int
    ) -> Generator[bytes, None, None]:
        from hf_xet import XetFileInfo

        group = self._xet.new_download_stream_group(
            token_refresh_url=f"{self._endpoint}/api/models/{self._repo_id}/xet-read-token/{commit}",
            token_refresh_headers=hub_headers(self._token),
        )
        stream = group.download_stream(XetFileInfo(xet_hash, file.size), start=start)
        try:
            yield from stream
        finally:
            stream.cancel()

    @cached_property
    def _xet(self) -> Any:
        """One session for all files, so that they share its buffers."""
        from hf_xet import XetConfig, XetSession

        # `fetch` tries again itself, and hears of a stop between two tries.
        settings = {"client.retry_max_attempts": 1, "client.read_timeout": "60s"}
        return XetSession(config=XetConfig().with_config(settings))

    def _over_http(
        self, url: str, file: RemoteFile, target: BinaryIO, on_bytes: OnBytes
    ) -> Generator[bytes, None, None]:
        from huggingface_hub import constants, get_session, hf_raise_for_status

        if file.size > _LARGEST_OVER_HTTP:
            raise InvalidRequestError(
                f"{file.name} is larger than 50 GB and not available over Xet from this hub; "
                "leave it out with `exclude`",
                param="exclude",
            )
        start = target.tell()
        headers = {**hub_headers(self._token), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            if response.status_code == _NOT_SATISFIABLE:
                raise _UnfitPartError
            hf_raise_for_status(response)
            if start and response.status_code == _OK:  # all of it, whatever was asked for
                _empty(target)
                on_bytes(-start)
            yield from response.iter_bytes()

    def _file(self, sibling: Any) -> RemoteFile:
        if not isinstance(sibling.rfilename, str) or not sibling.rfilename.strip("/"):
            raise HubError(f"the hub reports a file without a name in {self._repo_id}")
        digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if not isinstance(sibling.size, int) or sibling.size < 0:
            raise HubError(f"the hub reports no size for {sibling.rfilename} in {self._repo_id}")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise HubError(f"the hub reports no hash for {sibling.rfilename} in {self._repo_id}")
        return RemoteFile(sibling.rfilename, sibling.size, digest)


def get_json(url: str, headers: Mapping[str, str], **params: str | int) -> Any:
    """What the hub's API answers; raises as huggingface_hub does."""
    from huggingface_hub import get_session, hf_raise_for_status

    answer = get_session().get(url, params=params, headers=headers, timeout=_TIMEOUT)
    hf_raise_for_status(answer)
    return answer.json()


def hub_endpoint() -> str:
    """The URL of the hub that `HF_ENDPOINT` names, else of huggingface.co."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT") or constants.ENDPOINT


def hub_headers(token: str | None) -> dict[str, str]:
    """Headers with this token, or the one that huggingface_hub has for its user."""
    from huggingface_hub import constants, get_token

    if token is None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _passes(error: OSError) -> bool:
    """Whether a retry may succeed."""
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in _PASSING
    return error.errno is None and not isinstance(error, errors.OfflineModeIsEnabled)


def _empty(target: BinaryIO) -> None:
    target.seek(0)
    target.truncate()
