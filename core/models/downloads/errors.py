"""Errors of downloads, apart from invalid requests."""

from typing import ClassVar

from core.contract.errors import ServingError


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
