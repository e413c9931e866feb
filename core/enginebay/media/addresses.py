"""Which addresses belong to the internet, and to nobody's own machine or network."""

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Beside what `is_global` says, of which Python 3.11 does not have all.
_REFUSED = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's metadata and DNS: public only by its number
        "192.0.0.0/24",  # IETF protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "240.0.0.0/4",  # reserved
        "::/96",  # IPv4-compatible, deprecated
        "64:ff9b::/96",  # NAT64: any IPv4 address is in it
        "64:ff9b:1::/48",  # NAT64 of a local network
        "100::/64",  # discard
        "2001::/23",  # IETF protocol assignments, with Teredo
        "2002::/16",  # 6to4: any IPv4 address is in it
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local, deprecated
    )
)


def is_public(address: Address) -> bool:
    """Whether it is an address of the internet in which no other address is hidden."""
    address = unmapped(address)
    if isinstance(address, IPv6Address) and address.scope_id:
        return False
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return address.is_global and not in_any(address, _REFUSED)


def in_any(address: Address, networks: tuple[Network, ...]) -> bool:
    """Whether one of the networks has it."""
    address = unmapped(address)
    return any(address in network for network in networks if network.version == address.version)


def unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped one (`::ffff:1.2.3.4`) stands for."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
