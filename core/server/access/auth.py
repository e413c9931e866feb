"""Authorization checks of routes."""

from fastapi import Request

from core.contract.errors import AuthenticationError, PermissionDeniedError
from core.server.access.guard import Needed, needed
from core.server.http.track import running_request
from core.server.services import services


def is_admin(http: Request) -> bool:
    """Whether the request may do what only admins may: it has an admin key, or nobody needs one."""
    key = running_request(http).key
    return _needed(http) == "none" or (key is not None and key.role == "admin")


def sees_inside(http: Request) -> bool:
    """Whether error details (file paths) may be shown: to admins, and to everyone where no key is
    needed."""
    return is_admin(http) or _needed(http) != "required"


async def require_key(http: Request) -> None:
    """Raise unless the request has a known key, or nobody needs one.

    For public paths that need a key after all; other paths need one anyway.
    """
    if running_request(http).key is None and _needed(http) != "none":
        raise AuthenticationError(
            "this requires an API key in the header 'Authorization: Bearer KEY'"
        )


async def require_admin(http: Request) -> None:
    """Raise unless the request may do what only admins may."""
    if is_admin(http):
        return
    if key := running_request(http).key:
        raise PermissionDeniedError(
            f"this requires an admin key, but the key of {key.name} is a user key; `enginebay "
            "keys list` shows them"
        )
    raise AuthenticationError(
        "this requires an admin key in the header 'x-admin-key' or 'Authorization: Bearer KEY'; "
        "`enginebay keys add NAME --admin` creates one"
    )


def _needed(http: Request) -> Needed:
    return needed(services(http).config.server, http.scope)
