"""Items that are fetched over http and https."""

import asyncio
import ssl
from functools import cached_property
from urllib.parse import urljoin

import httpcore2

from enginebay.contract.errors import InvalidRequestError
from enginebay.media.network import CheckedBackend, Resolver, SystemResolver
from enginebay.media.policy import ByteLimit, MediaPolicy
from enginebay.media.urls import Target, target_of

_REDIRECTS = 3
_PIECES = 20_000  # of a body; each takes time of the event loop, however small it is
_HEADERS = (
    ("Accept", "image/*, audio/*, video/*, */*;q=0.1"),
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
    ("User-Agent", "Enginebay"),
)


class Fetcher:
    """Gets what URLs lead to, from where the policy allows, within its limits.

    Each request, and each redirect is one, has a connection of its own, made to an address that was
    checked for it. Proxies of the environment are not used. `resolve` and `tls` replace the
    system's resolver and its certificate authorities.
    """

    def __init__(
        self,
        policy: MediaPolicy,
        *,
        resolve: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._system = SystemResolver(policy.fetches)
        self._backend = CheckedBackend(policy.allows_address, resolve or self._system)
        self._given_tls = tls
        self._turn = asyncio.Semaphore(policy.fetches)

    def close(self) -> None:
        """Fetch nothing more."""
        self._system.close()

    def check(self, url: str) -> Target:
        """Raise unless the config lets this URL be fetched, here or by another server."""
        if not self._policy.fetch:
            raise InvalidRequestError(
                "this server fetches nothing (server.fetch_media); send a data URL"
            )
        target = target_of(url)
        if not self._policy.allows_host(target.host):
            raise InvalidRequestError(
                "this server does not fetch from the URL's host (server.media_hosts)"
            )
        return target

    async def get(self, url: str, limit: ByteLimit) -> bytes:
        """The body behind a URL; `InvalidRequestError` says in plain words why there is none.

        No address and no part of the URL is in these words. Cancelling closes the connection.
        """
        self.check(url)  # before it waits
        try:
            async with self._turn, asyncio.timeout(self._policy.seconds):
                return await self._follow(url, limit)
        except (TimeoutError, httpcore2.TimeoutException) as error:
            raise InvalidRequestError(
                f"fetching it took longer than {self._policy.seconds:g} seconds "
                "(server.media_timeout)"
            ) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
            raise InvalidRequestError("it cannot be fetched: the connection failed") from error

    async def _follow(self, url: str, limit: ByteLimit) -> bytes:
        for _ in range(_REDIRECTS + 1):
            found = await self._ask(url, limit)
            if isinstance(found, bytes):
                return found
            try:
                url = urljoin(url, found)
            except ValueError as error:
                raise InvalidRequestError("it redirects to a URL that is not valid") from error
        raise InvalidRequestError(f"it redirects more than {_REDIRECTS} times")

    async def _ask(self, url: str, limit: ByteLimit) -> bytes | str:
        """The body, or where it is instead."""
        target = self.check(url)
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls, network_backend=self._backend, max_keepalive_connections=0
        )
        headers = [("Host", target.host_header), *_HEADERS]
        more = {"timeout": {"connect": self._policy.seconds}}
        stream = pool.stream("GET", target.url, headers=headers, extensions=more)
        async with pool, stream as response:
            if response.status in (301, 302, 303, 307, 308):
                return _header(response, b"location")
            return await self._body(response, limit)

    @staticmethod
    async def _body(response: httpcore2.Response, limit: ByteLimit) -> bytes:
        if response.status != 200:
            raise InvalidRequestError(f"it cannot be fetched: its server says {response.status}")
        if _header(response, b"content-encoding").lower() not in ("", "identity"):
            raise InvalidRequestError("it cannot be fetched: its server sends it compressed")
        limit.expect(int(_header(response, b"content-length") or 0))
        body = bytearray()
        pieces = 0
        async for piece in response.aiter_stream():
            pieces += 1
            if pieces > _PIECES:
                raise InvalidRequestError("it cannot be fetched: it comes in too many pieces")
            limit.take(len(piece))
            body += piece
        return bytes(body)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._given_tls or httpcore2.default_ssl_context()


def _header(response: httpcore2.Response, name: bytes) -> str:
    """The first of this name; empty without one. h11 lets numbers only be a Content-Length."""
    values = (value for key, value in response.headers if key.lower() == name)
    return next(values, b"").decode("latin-1").strip()
