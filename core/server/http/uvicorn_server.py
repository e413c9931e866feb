"""Running the app: the socket, uvicorn, the log."""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from math import ceil
from types import FrameType

import psutil
import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.logging import RichHandler

from core.contract.errors import ServerStoppingError
from core.server.http.protocol import limited_protocol
from core.server.observe.logs import AddRequest, JsonFormatter, TextFormatter
from core.server.services import services_of

logger = logging.getLogger(__name__)

_ENDING = 2
"""Seconds in which streams get their final events, before their connections are closed."""

WhenStarted = Callable[[], Awaitable[None]]


class CannotListenError(Exception):
    """The address cannot be used; the message says why and what to do."""


def listen(host: str, port: int, source: str = "", *, other: str = "with --port") -> socket.socket:
    """A listening socket. Raises `CannotListenError`.

    `source` is where the port was set, `other` how another one is chosen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    set_in = f" (set in {source})" if source and not source.startswith("--") else ""
    try:
        socket.getaddrinfo(host, port, family)
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: f"port {port} is already in use{set_in}: stop the program that "
            f"listens there, or choose another port {other}",
            errno.EACCES: f"port {port} needs more privileges{set_in}: choose 1024 or higher",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine: use 127.0.0.1 for "
            "this machine only, 0.0.0.0 for everyone who can reach it",
        }
        if isinstance(error, socket.gaierror):
            reason = f"the host {host!r} is not known: {error.strerror}"
        else:
            reason = reasons.get(error.errno or 0, f"{host} port {port}: {error.strerror}")
        raise CannotListenError(reason) from error


def url_of(host: str, port: int) -> str:
    """The URL at which a browser on this machine finds the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def urls_elsewhere(host: str, port: int) -> list[str]:
    """The URLs at which other machines of the network may find it, if it listens for them all."""
    if host not in ("0.0.0.0", "::", ""):
        return []
    found = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
    addresses = [IPv4Address(each.address) for each in found if each.family == socket.AF_INET]
    return [
        url_of(str(address), port)
        for address in addresses
        if not (address.is_loopback or address.is_link_local)
    ]


class Server(uvicorn.Server):
    """uvicorn, which runs `when_started` beside the requests once it takes them.

    Ctrl-C and SIGTERM give running answers `server.shutdown_timeout` seconds, a second signal
    none, a third exits at once. Waiting requests get a 503.
    """

    def __init__(self, app: FastAPI, level: str, when_started: WhenStarted) -> None:
        shared = services_of(app)
        server = shared.config.server
        self._timeout = server.shutdown_timeout
        super().__init__(
            uvicorn.Config(
                app,
                http=limited_protocol(server.request_timeout),
                log_config=None,
                log_level="debug" if level == "debug" else "warning",
                access_log=False,
                timeout_graceful_shutdown=ceil(self._timeout) + _ENDING,
                lifespan="on",
            )
        )
        self._models = shared.models
        self._requests = shared.serving.requests
        self._when_started = when_started
        self._started: asyncio.Future[None] | None = None
        self._hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._started = asyncio.ensure_future(self._when_started())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own would raise the signal again in the end: the exit code would not be 0.
        if not self.should_exit:
            self.should_exit = True
        elif not self._hurry:
            self._hurry = True
        else:
            self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info(
            "stopping; %d running answers get %g seconds, none after another Ctrl-C",
            sum(request.state == "running" for request in self._requests),
            self._timeout,
        )
        if self._started:
            self._started.cancel()
        for model in self._models.all():
            if model.started:
                model.started.gate.close(_stopping())
        self._requests.cancel(_stopping(), waiting_only=True)
        ending = asyncio.ensure_future(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            if self.force_exit:  # everything else is cancelled next, each with a traceback
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    async def _end_requests(self) -> None:
        """End what still runs after its time, and say so: with "abort" and what there is so far.

        Left to uvicorn, it would be cancelled: a stream cut off, a whole answer a bare 500.
        """
        loop = asyncio.get_running_loop()
        over = loop.time() + self._timeout
        while loop.time() < over and not self._hurry:  # noqa: ASYNC110  (set by a signal's handler)
            await asyncio.sleep(0.1)
        self._requests.cancel(_stopping())
        await self._models.close()

    @contextmanager
    def in_thread(self, listening: socket.socket) -> Iterator[None]:
        """Run on a thread of its own until the block ends."""
        thread = threading.Thread(target=self.run, args=([listening],), name="server")
        thread.start()
        try:
            yield
        finally:
            self.should_exit = True
            thread.join()


def _stopping() -> ServerStoppingError:
    return ServerStoppingError("the server is shutting down; try again when it is back up")


def set_up_logging(level: str, console: Console, *, as_json: bool = False) -> None:
    """One line an event on `console`, with bars below it if it is a terminal."""
    handler: logging.Handler = logging.StreamHandler(console.file)
    if as_json:
        handler.setFormatter(JsonFormatter())
    elif console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(TextFormatter("%(message)s%(about)s"))
    else:
        text = "%(asctime)s %(levelname)-7s %(name)s: %(message)s%(about)s"
        handler.setFormatter(TextFormatter(text, "%H:%M:%S"))
    handler.addFilter(AddRequest())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":  # a line a request, with the signed URLs of downloads
        logging.getLogger("httpx2").setLevel(logging.WARNING)
