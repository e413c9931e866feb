"""Connections to addresses that were checked, and to no others."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import httpcore2

from enginebay.contract.errors import InvalidRequestError
from enginebay.media.addresses import Address

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to its addresses as text; `OSError` if there are none."""

Allows = Callable[[Address, int], bool]

_TRIED = 4  # addresses of a host


class SystemResolver:
    """Asks the operating system, on threads of its own: resolving cannot be cancelled."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="media-resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        infos = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    def close(self) -> None:
        """Take no more questions; does not wait for what is still being resolved."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a host once, checks every address, and connects to one of these by its number.

    TLS still gets the name. One address that is refused refuses the host: answers that are mixed
    are what rebinding looks like. That a host is not known and that it is refused sounds the same,
    so that nobody learns the names of a private network.
    """

    def __init__(
        self,
        allows: Allows,
        resolve: Resolver,
        inner: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allows = allows
        self._resolve = resolve
        self._inner = inner or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._addresses(host, port)
        share = timeout and timeout / len(addresses)  # one that does not answer leaves time

        async def connected(address: Address) -> httpcore2.AsyncNetworkStream:
            return await self._inner.connect_tcp(
                str(address), port, share, local_address, socket_options
            )

        *others, last = addresses
        for address in others:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await connected(address)
        return await connected(last)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            found = [ip_address(text) for text in await self._resolve(host, port)]
        except (OSError, ValueError):
            found = []
        if not found or not all(self._allows(address, port) for address in found):
            raise InvalidRequestError(
                "the URL's host has no address that this server may ask: public ones at ports 80 "
                "and 443, and those in server.media_networks"
            )
        return found[:_TRIED]

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("no sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
