"""Authorization checks of routes."""

from fastapi import Request
from fastapi.params import Depends

from enginebay.contract.errors import AuthenticationError, PermissionDeniedError
from enginebay.models.permissions import Action, Reach, allowed
from enginebay.server.access.guard import Needed, needed
from enginebay.server.http.track import running_request
from enginebay.server.services import services


def is_admin(http: Request) -> bool:
    """Whether the request may do what only admins may: it has an admin key, or nobody needs one."""
    return running_request(http).is_admin


def sees_inside(http: Request) -> bool:
    """Whether error details (file paths) may be shown: to admins, and to everyone where no key is
    needed."""
    return is_admin(http) or _needed(http) != "required"


async def require_key(http: Request) -> None:
    """Raise unless the request has a known key, or nobody needs one.

    For paths that need a key where others do not.
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


def reach(http: Request, action: Action) -> Reach:
    """How far the request may do this."""
    return allowed(action, is_admin=is_admin(http))


async def require(http: Request, action: Action) -> None:
    """Raise unless the request may do this."""
    if reach(http, action) == "none":
        await require_admin(http)


def needs(action: Action) -> Depends:
    """A dependency of routes that do this: see `require`."""

    async def check(http: Request) -> None:
        await require(http, action)

    return Depends(check)


def _needed(http: Request) -> Needed:
    return needed(services(http).config.server, http.scope)
