"""Running the app: uvicorn, the log."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.logging import RichHandler

from enginebay.config.schema import ServerConfig
from enginebay.contract.errors import ServerStoppingError
from enginebay.server.api_document import ApiDocument
from enginebay.server.http.certificate import certificate_of
from enginebay.server.http.protocol import limited_protocol
from enginebay.server.http.slashes import without_doubled
from enginebay.server.observe.logs import AddRequest, JsonFormatter, TextFormatter
from enginebay.server.paths import Paths
from enginebay.server.services import services_of

logger = logging.getLogger(__name__)

_ENDING = 2
"""Seconds in which streams get their final events, before their connections are closed."""

WhenStarted = Callable[[], Awaitable[None]]


class Server(uvicorn.Server):
    """uvicorn, which runs `when_started` beside the requests once it takes them.

    Ctrl-C and SIGTERM give running answers `server.shutdown_timeout` seconds, a second signal
    none, a third exits at once. Waiting requests get a 503. SIGHUP has the config read again.
    Raises `ConfigError` if the certificate of the config cannot be used.
    """

    def __init__(self, app: FastAPI, level: str, when_started: WhenStarted) -> None:
        shared = services_of(app)
        server = shared.config.server
        self._timeout = server.shutdown_timeout
        certificate = certificate_of(shared.config)
        if certificate and (warning := certificate.warning(time.time())):
            logger.warning(warning)
        super().__init__(
            uvicorn.Config(
                app,
                **protocols(server, shared.paths),
                log_config=None,
                log_level="debug" if level == "debug" else "warning",
                access_log=False,
                proxy_headers=False,  # which are the app's business
                ssl_context_factory=(lambda *_: certificate.context) if certificate else None,
                timeout_graceful_shutdown=ceil(self._timeout) + _ENDING,
                lifespan="on",
            )
        )
        self._models = shared.models
        self._requests = shared.serving.requests
        self._reload = shared.reload
        self._reloads: set[asyncio.Task[None]] = set()
        self._when_started = when_started
        self._make_api_document = partial(shared.kept(ApiDocument).make, app)
        self._certificate = certificate
        self._beside: list[asyncio.Future[None]] = []
        self._hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # else each full collection looks at all modules, which takes 80 ms
        if self.started:
            self._beside.append(asyncio.ensure_future(self._when_started()))
            self._make_api_document()  # nobody who asks for it later shall have to wait
            if self._certificate:
                self._beside.append(asyncio.ensure_future(self._certificate.keep_current()))
            self._reload_on_hangup()

    def _reload_on_hangup(self) -> None:
        """Read the config again on SIGHUP, but stop if it says that the terminal was closed."""
        if not hasattr(signal, "SIGHUP") or threading.current_thread() != threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        had_terminal = _has_terminal()

        def on_hangup() -> None:
            if had_terminal and not _has_terminal():
                self.handle_exit(signal.SIGHUP, None)
            else:
                reload = loop.create_task(self._reload.run_logged())
                self._reloads.add(reload)
                reload.add_done_callback(self._reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, on_hangup)

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
        for work in (*self._beside, *self._reloads):
            work.cancel()
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


def protocols(server: ServerConfig, paths: Paths) -> dict[str, Any]:
    """Return the options of uvicorn for HTTP, and for the WebSockets that routes take."""
    http, root = limited_protocol(server.request_timeout), server.root_path or ""
    try:
        from enginebay.server.http.web_socket_protocol import WebSocketProtocol
    except ImportError:  # the package websockets is not installed
        return {"http": http, "ws": "none"}

    def takes_socket(path: str) -> bool:
        return paths.takes_socket(without_doubled(path).removeprefix(root))

    http.takes_socket = staticmethod(takes_socket)
    ws = type("WebSocketProtocol", (WebSocketProtocol,), {"seconds": http.seconds})
    return {"http": http, "ws": ws, "ws_max_size": server.max_request_bytes}


def _has_terminal() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


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
