"""What the config allows requests to have as media."""

from dataclasses import dataclass, field
from pathlib import Path

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import MediaLimits
from enginebay.media.addresses import Address, Network, in_any, is_public

_PORTS = (80, 443)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPolicy:
    """Where media may come from, and how much of it.

    `hosts`: in lower case; `.example.org` is every name below, and without any every host may be
    asked. `networks`: addresses that may be asked, at every port, although they are not public.
    `folder`: whose files may be named. `item_bytes`, `request_bytes`: of one item, of all of a
    request, as files, before decoding. `seconds`: to fetch one item. `fetches`: at the same time,
    `request_fetches` of them for one request.
    """

    fetch: bool = True
    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    folder: Path | None = None
    items: int = 16
    item_bytes: int = 20_000_000
    request_bytes: int = 64_000_000
    seconds: float = 10.0
    fetches: int = 16
    request_fetches: int = 4
    limits: MediaLimits = field(default_factory=MediaLimits)

    def allows_host(self, host: str) -> bool:
        """Whether this name, in lower case, may be asked."""
        return not self.hosts or any(
            host == name or (name.startswith(".") and host.endswith(name)) for name in self.hosts
        )

    def allows_address(self, address: Address, port: int) -> bool:
        """Whether a connection may be made to it."""
        return in_any(address, self.networks) or (port in _PORTS and is_public(address))


@dataclass(slots=True)
class ByteLimit:
    """Counts bytes while they are read, here and in the limit of a whole of which this is a part.

    `of` says in an error what has too many of them.
    """

    most: int
    of: str
    whole: "ByteLimit | None" = None
    taken: int = 0

    def expect(self, count: int) -> None:
        """`InvalidRequestError` if so many more bytes would be too many."""
        if self.taken + count > self.most:
            raise InvalidRequestError(f"{self.of} more than {self.most} bytes")
        if self.whole:
            self.whole.expect(count)

    def take(self, count: int) -> None:
        """Count these; `InvalidRequestError` if they are too many."""
        self.expect(count)
        self.taken += count
        if self.whole:
            self.whole.take(count)
