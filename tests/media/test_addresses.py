"""Which addresses are public: MEDIA-22, LF-11, LF-31."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.media.addresses import is_public

NOT_PUBLIC = {
    "loopback": "127.0.0.1",
    "loopback, another": "127.1.2.3",
    "this network": "0.0.0.0",
    "private 10": "10.0.0.1",
    "private 172.16": "172.31.255.255",
    "private 192.168": "192.168.1.1",
    "link-local, metadata of clouds": "169.254.169.254",
    "carrier NAT": "100.64.0.1",
    "carrier NAT, metadata of Alibaba": "100.100.100.200",
    "metadata of Azure": "168.63.129.16",
    "benchmark": "198.18.0.1",
    "documentation": "203.0.113.9",
    "IETF": "192.0.0.8",
    "6to4 relay": "192.88.99.1",
    "multicast": "224.0.0.1",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "v6 loopback": "::1",
    "v6 unspecified": "::",
    "v6 link-local": "fe80::1",
    "v6 link-local with scope": "fe80::1%1",
    "v6 public with scope": "2606:4700::1%1",
    "v6 unique local": "fc00::1",
    "v6 unique local, metadata of AWS": "fd00:ec2::254",
    "v6 site-local": "fec0::1",
    "v6 multicast": "ff02::1",
    "v6 documentation": "2001:db8::1",
    "v6 documentation, new": "3fff::1",
    "v6 discard": "100::1",
    "v6 segment routing": "5f00::1",
    "v4-mapped loopback": "::ffff:127.0.0.1",
    "v4-mapped metadata": "::ffff:169.254.169.254",
    "v4-compatible": "::127.0.0.1",
    "NAT64 loopback": "64:ff9b::7f00:1",
    "NAT64 of a public address": "64:ff9b::808:808",
    "NAT64 of a local network": "64:ff9b:1::a9fe:a9fe",
    "6to4 loopback": "2002:7f00:1::",
    "6to4 of a public address": "2002:808:808::1",
    "Teredo": "2001:0:7f00:1::",
}
PUBLIC = ("93.184.216.34", "8.8.8.8", "2606:4700::6810:84e5", "::ffff:8.8.8.8")


@pytest.mark.parametrize("name", NOT_PUBLIC)
def test_attack_address(name: str) -> None:
    assert not is_public(ip_address(NOT_PUBLIC[name]))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_in_another_counts_as_itself(address: IPv4Address) -> None:
    number = int(address)
    assert is_public(IPv6Address(0xFFFF << 32 | number)) == is_public(address)
    for hiding in (number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
        assert not is_public(IPv6Address(hiding))


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_public(address: IPv4Address | IPv6Address) -> None:
    if is_public(address):
        assert address.is_global or getattr(address, "ipv4_mapped", None)
