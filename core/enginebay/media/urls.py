"""http and https URLs of clients, and of servers that redirect: taken apart once, strictly."""

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import httpcore2

from enginebay.contract.errors import InvalidRequestError

_LONGEST, _LONGEST_HOST = 8000, 253
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """What to ask for. `host`: its name in lower case, ASCII, without brackets and a last dot."""

    url: httpcore2.URL
    host: str
    host_header: str


def target_of(url: str) -> Target:
    """A URL as it is asked for; `InvalidRequestError` if it is not one of http or https."""
    try:
        return _target(url)
    except ValueError as error:  # which UnicodeError is
        raise InvalidRequestError(
            "the URL is not valid: give an http, https, data or file URL, without a user name, "
            f"spaces and control characters, of at most {_LONGEST} characters"
        ) from error


def _target(url: str) -> Target:
    if len(url) > _LONGEST or any(character <= " " or character in "\\\x7f" for character in url):
        raise ValueError("characters")
    parts = urlsplit(url)
    default = _PORTS.get(parts.scheme)
    if default is None or parts.username is not None or parts.password is not None:
        raise ValueError("scheme or user name")
    host = _host(parts.hostname or "")
    port = default if parts.port is None else parts.port
    written = f"[{host}]" if ":" in host else host
    query = f"?{parts.query}" if parts.query else ""
    target = quote(f"{parts.path or '/'}{query}", safe="/?:@!$&'()*+,;=-._~%")
    return Target(
        httpcore2.URL(scheme=parts.scheme, host=host, port=port, target=target),
        host,
        written if port == default else f"{written}:{port}",
    )


def _host(name: str) -> str:
    if ":" in name:  # an IPv6 address
        return name
    if not name or len(name) > _LONGEST_HOST:
        raise ValueError("host")
    return name.encode("idna").decode("ascii").rstrip(".").lower()
