"""A server that media are fetched from, and that does whatever it is told."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address, ip_network
from typing import Any

from enginebay.media.policy import MediaPolicy

Answer = bytes | Callable[["Visit"], Awaitable[None]]


class Visit:
    """A connection: what was asked, and both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def is_over(self, seconds: float | None = None) -> bool:
        """Wait until the client has left, at most this long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.reader.read(1), seconds)
            return True
        return False


class Origin:
    """`answers`: for each path the bytes to send, or what to do. `asked`: paths and `Host`s.

    `left`: set when a client has closed its connection before or after the end of an answer.
    """

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {f"/{name}": answer for name, answer in answers.items()}
        self.asked: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        self.port = 0
        self.visits: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.visits.add(task)
        visit = Visit(reader, writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            path = lines[0].split(" ")[1]
            host = next(line for line in lines if line.lower().startswith("host: "))[6:]
            self.lines += lines
            self.asked.append((path, host))
            self.arrived.set()
            answer = self.answers[path.partition("?")[0]]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(visit)
            await visit.is_over()
        self.left.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def url(self, path: str, host: str = "pictures.example", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/{path}"


@asynccontextmanager
async def origin(*, tls: ssl.SSLContext | None = None, **answers: Answer) -> AsyncIterator[Origin]:
    served = Origin(**answers)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served
        # Which also shows that every connection has been closed by then.
        await asyncio.wait_for(asyncio.gather(*served.visits), 10)


def ok(
    body: bytes, *headers: str, status: str = "200 OK", length: int | str | None = None
) -> bytes:
    size = len(body) if length is None else length
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {size}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def redirect(to: str, status: int = 302) -> bytes:
    return ok(b"", f"Location: {to}", status=f"{status} Found")


LOOPBACK = ip_network("127.0.0.1/32")


def policy(**settings: Any) -> MediaPolicy:
    """One that has an origin of a test asked."""
    return MediaPolicy(**{"networks": (LOOPBACK,), **settings})


class Names:
    """A resolver: each name has answers, of which the last is repeated; unknown ones are loopback.

    Numbers are themselves. `asked` are the names in order.
    """

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        with suppress(ValueError):
            return [str(ip_address(host))]
        lists = self._answers.get(host, [["127.0.0.1"]])
        return lists.pop(0) if len(lists) > 1 else lists[0]


async def unknown(host: str, port: int) -> list[str]:
    raise OSError("Name or service not known")
