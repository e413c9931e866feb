"""What proxies say of the requests that they pass on, and which of them are believed.

https://www.rfc-editor.org/rfc/rfc7239, and the older `X-Forwarded-*`, which most of them send.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

from starlette.types import Scope

from enginebay.config.listening import UNIX, is_path

Headers = Iterable[tuple[bytes, bytes]]

_SENT_BY_PROXIES = frozenset(
    (b"forwarded", b"via", b"x-real-ip", b"cf-connecting-ip", b"true-client-ip")
)
_PREFIX = b"x-forwarded-"
_PAIR = re.compile(
    r'\s*([\w!#$%&*+.^|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]*))\s*([;,]|$)', re.ASCII
)
_HOST = re.compile(r"[\w.-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?", re.ASCII)


class Said(NamedTuple):
    """What a proxy says of a request; None where it says nothing that makes sense."""

    client: str | None = None
    scheme: str | None = None
    host: str | None = None
    prefix: str | None = None


def came_through_proxy(scope: Scope) -> bool:
    """Whether a request bears the marks of a proxy; one that leaves none cannot be told.

    nginx, if nobody has told it otherwise, adds no header, but asks in HTTP/1.0 and closes.
    """
    names = {name for name, _ in scope["headers"]}
    if scope["http_version"] == "1.0" and {b"host", b"connection"} <= names:
        return True
    return any(name in _SENT_BY_PROXIES or name.startswith(_PREFIX) for name in names)


class TrustedProxies:
    """Addresses and networks of proxies, and `unix` for who connects to the unix socket."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = [ip_network(each) for each in trusted if each != UNIX]
        self._unix = UNIX in trusted

    def read(self, peer: str, headers: Headers) -> Said:
        """What `peer` says, an address or `unix`; nothing if it is not trusted.

        Of several addresses the last one that is not a trusted proxy's is the client's: those
        before it are hearsay. Of the rest the last value counts, which the nearest proxy wrote.
        `Forwarded` is read only without `X-Forwarded-*`: most proxies pass on what they do not
        know, and with it what a client made up.
        """
        if not (self._unix if peer == UNIX else self._is_trusted(_address(peer))):
            return Said()
        sent: dict[bytes, str] = {}
        for name, value in headers:
            if name == b"forwarded" or name.startswith(_PREFIX):
                before = f"{sent[name]}," if name in sent else ""
                sent[name] = before + value.decode("latin-1")
        if sent.keys() & {b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"}:
            addresses = sent.get(b"x-forwarded-for", "").split(",")
            scheme, host = _last(sent, b"x-forwarded-proto"), _last(sent, b"x-forwarded-host")
        else:
            elements = _elements(sent.get(b"forwarded", ""))
            addresses = [each.get("for", "") for each in elements]
            scheme, host = elements[-1].get("proto", ""), elements[-1].get("host", "")
        prefix = _last(sent, b"x-forwarded-prefix").rstrip("/")
        return Said(
            self._client(addresses),
            scheme.lower() if scheme.lower() in ("http", "https") else None,
            host if _HOST.fullmatch(host) else None,
            prefix if is_path(prefix) else None,
        )

    def _client(self, addresses: Sequence[str]) -> str | None:
        found = None
        for text in reversed(addresses):
            address = _address(text)
            if address is None:
                break
            found = str(address)
            if not self._is_trusted(address):
                break
        return found

    def _is_trusted(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _last(sent: Mapping[bytes, str], name: bytes) -> str:
    return sent.get(name, "").rpartition(",")[2].strip()


def _elements(text: str) -> list[dict[str, str]]:
    """What each proxy says in a `Forwarded`, the nearest last; nothing if it is malformed."""
    elements: list[dict[str, str]] = [{}]
    at = 0
    while found := _PAIR.match(text, at):
        value = found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2])
        elements[-1][found[1].lower()] = value
        at = found.end()
        if found[4] == ",":
            elements.append({})
    return elements if at == len(text) else [{}]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, which may have a port; IPv4 in IPv6 is IPv4."""
    bare = re.sub(r"^\[(.*)\](:\d+)?$|^([\d.]+):\d+$", r"\1\3", text.strip())
    try:
        address = ip_address(bare.partition("%")[0])  # what follows may be anything
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
