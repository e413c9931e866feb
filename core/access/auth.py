"""API keys."""

import hmac

from fastapi import Request

from core.errors import AuthenticationError


async def require_key(http: Request) -> None:
    """Raise unless the request has one of the configured keys, or none is configured.

    Read from `Authorization: Bearer` or `x-api-key`; some clients send both.
    """
    keys = http.app.state.config.server.api_keys
    if not keys:
        return
    scheme, _, bearer = http.headers.get("authorization", "").partition(" ")
    sent = [http.headers.get("x-api-key", "")]
    if scheme.lower() == "bearer":
        sent.append(bearer.strip())
    for key in keys:
        secret = key.get_secret_value().encode()
        if any(hmac.compare_digest(candidate.encode(), secret) for candidate in sent):
            return
    raise AuthenticationError(
        "no API key was sent; use the header 'Authorization: Bearer KEY'"
        if not any(sent)
        else "this API key is not known"
    )


def is_admin(http: Request) -> bool:
    """Whether a request that `require_key` has let in may do what only admins may."""
    return True


async def require_admin(http: Request) -> None:
    """Raise unless the request may do what only admins may."""
    await require_key(http)
