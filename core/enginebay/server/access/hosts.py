"""Allowed host names, and the web pages that may call the server.

Only where no key is needed: a page that does not know a key can do nothing with the others.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence

from enginebay.config.schema import ServerConfig
from enginebay.contract.errors import PermissionDeniedError

_HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([\w-]+(?:\.[\w-]+)*)\.?)(?::\d*)?", re.I | re.A)

PROGRAMS = r"(?i:(?!https?:|file:)[a-z][a-z\d+.-]*)://.+"
"""Origins of installed programs, such as `app://obsidian.md`: no web page has such a scheme."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def others_can_connect(server: ServerConfig) -> bool:
    """Whether other machines can reach the server: it listens for them, or for a proxy."""
    if server.root_path or server.trusted_proxies:
        return True
    if server.unix_socket and server.unix_socket_access != "owner":
        return True  # which is for the proxy of another user
    by_tcp = server.unix_socket is None or server.second_port is not None
    return by_tcp and not is_loopback(server.host)


def is_allowed(host: str, server: ServerConfig) -> bool:
    """Whether no page of somebody else can reach this server under this `Host`.

    A page can have its own name lead to another address once it is loaded (DNS rebinding), and
    then is of the same origin as whatever listens there. In a local network, pages can have names
    such as `wpad`, `nas.local` and `box.home.arpa`. Nobody else has an address, or a name of this
    machine. What sends no `Host` is no browser.
    """
    name = _hostname(host)
    known = bool(name) and (_is_address(name) or name in _own_names(server))
    return not host or known or _is_listed(name, server.allowed_hosts)


def check_host(host: str, server: ServerConfig) -> None:
    """Raise `PermissionDeniedError` for a `Host` that is not allowed."""
    if is_allowed(host, server):
        return
    name = _hostname(host)
    raise PermissionDeniedError(
        f"the host {name or host!r} is not allowed: add it to `server.allowed_hosts` in the "
        "config if it is a name of this server, or send an API key"
    )


def check_origin(headers: dict[bytes, bytes], server: ServerConfig) -> None:
    """Refuse what another site's web page sends.

    Browsers send simple requests before they ask whether they may, and only keep the answer from
    the page: closed CORS does not stop those. What is no browser sends no `Origin`, nor
    `Sec-Fetch-Site`, by which images and links of other sites are known. Installed programs
    (`PROGRAMS`) may call. Raises `PermissionDeniedError`.
    """
    origin = headers.get(b"origin", b"").decode("latin-1")
    site = headers.get(b"sec-fetch-site")
    if site in (b"same-origin", b"none") or (not origin and site != b"cross-site"):
        return
    host = headers.get(b"host", b"").decode("latin-1")
    _, _, place = origin.partition("://")
    own = place.lower() == host.lower()
    if own or re.fullmatch(PROGRAMS, origin) or {"*", origin}.intersection(server.cors_origins):
        return
    page = f"the web page {origin!r}" if origin else "a web page from another site"
    raise PermissionDeniedError(
        f"{page} may not call this server: add it to `server.cors_origins` in the config"
    )


def _hostname(host: str) -> str:
    """A `Host` without its port and a dot at the end, in lower case; empty if it is none."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def _own_names(server: ServerConfig) -> set[str]:
    """The names of this machine: in containers, in its local network, and as it listens."""
    machine = socket.gethostname().lower()
    short = machine.partition(".")[0]
    local = {"localhost", "host.docker.internal", f"{short}.local"}
    return {*local, machine, short, server.host.lower()}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_listed(name: str, allowed: Sequence[str]) -> bool:
    for pattern in map(str.lower, allowed):
        suffix = pattern.removeprefix("*")
        if name == pattern or (suffix != pattern and name.endswith(suffix)):
            return True
    return False
