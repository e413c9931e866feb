"""Errors of the hub and of downloads, apart from invalid requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from enginebay.contract.errors import InvalidRequestError, ServingError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


_LONGEST = 100
"""Characters of what a library says of an answer that it cannot read."""


class RepositoryNotFoundError(ServingError):
    """The hub has no such repository or revision, or does not show it to this token."""

    status = 404
    type = "invalid_request_error"
    code = "repository_not_found"


class RepositoryForbiddenError(ServingError):
    """The hub denies this token access to the repository."""

    status = 403
    type = "permission_error"
    code = "repository_forbidden"


class DownloadConflictError(ServingError):
    """The folder or the repository is taken: by another download, or by other files."""

    status = 409
    type = "invalid_request_error"
    code = "download_conflict"


class HubError(ServingError):
    """The hub cannot be reached or returned an unexpected answer."""

    status = 502
    type = "server_error"
    code: ClassVar[str | None] = "hub_error"


class DownloadTimeoutError(ServingError):
    """The download took longer than the request allows."""

    status = 504
    type = "server_error"
    code = "download_timeout"


class DiskFullError(ServingError):
    """There is not enough disk space for the files."""

    status = 507
    type = "server_error"
    code = "insufficient_storage"


@contextmanager
def in_words(asked: str, revision: str | None = None) -> Iterator[None]:
    """Raise what goes wrong at the hub as a `ServingError`; `asked` is the repository, say."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise InvalidRequestError(str(error), param="repo_id") from error
    except errors.GatedRepoError as error:
        raise RepositoryForbiddenError(
            f"{asked} is gated: accept its terms on its hub page, then send a token of "
            "that account or set HF_TOKEN",
            param="token",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise RepositoryNotFoundError(
            f"the hub has no repository {asked}, or none that this token may see; for a "
            "private one send `token`, or set HF_TOKEN",
            param="repo_id",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise RepositoryNotFoundError(
            f"{asked} has no revision {revision!r}", param="revision"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise HubError("HF_HUB_OFFLINE is set, so the hub is not asked for anything") from error
    except errors.HfHubHTTPError as error:
        raise _refusal(asked, error) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the hub
        raise HubError(
            f"the hub cannot be reached ({type(error).__name__}: {error}); what "
            "arrived is kept, so try again when this machine has a network"
        ) from error
    except (TypeError, AttributeError, LookupError, RecursionError, ValueError) as error:
        raise HubError(
            f"the hub's answer about {asked} cannot be read; is HF_ENDPOINT the address of a "
            f"Hugging Face hub? {type(error).__name__}: {str(error)[:_LONGEST]}"
        ) from error


def _refusal(asked: str, error: HfHubHTTPError) -> HubError | RepositoryForbiddenError:
    status = error.response.status_code
    if status in (401, 403):
        return RepositoryForbiddenError(
            f"the hub denied access to {asked} ({status}); send a `token` that may read it, or "
            "set HF_TOKEN",
            param="token",
        )
    return HubError(f"the hub answered {status} for {asked}; try again later")
