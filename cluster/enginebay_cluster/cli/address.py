"""Where the head of a cluster is, and where this machine is for others."""

from __future__ import annotations

import socket
import time

from enginebay.cli.console import fail

REACHING = 10.0
"""Seconds in which a head must take a connection."""


def reached(head: str, port: int) -> str:
    """The head's HOST:PORT, this `port` if it has none. Exits if nothing takes a connection."""
    from enginebay_cluster.settings import head_address

    has_port = ":" in head and not head.endswith("]")
    try:
        address = head_address(head if has_port else f"{head}:{port}")
    except ValueError:
        fail(f"{head!r} is not the address of a head: HOST or HOST:PORT", code=2)
    host, _, number = address.rpartition(":")
    until = time.monotonic() + REACHING
    while True:
        left = until - time.monotonic()
        try:
            socket.create_connection((host.strip("[]"), int(number)), max(left, 0.1)).close()
            return address
        except OSError as error:
            if isinstance(error, socket.gaierror) or left < 1:
                fail(
                    f"nothing answers at {address} ({error}). Is the head running "
                    "(`enginebay cluster up`), is this its address, and do firewalls let this "
                    "machine through?"
                )
            time.sleep(1)


def own_address() -> str:
    """That of the network with the default route; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))
            address, _ = probe.getsockname()
            return str(address)
        except OSError:
            return socket.gethostname()
