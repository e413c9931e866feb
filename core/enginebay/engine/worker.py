"""The main function of an engine's process."""

import faulthandler
import logging
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection

from enginebay.contract.engine import Engine
from enginebay.contract.errors import ServingError
from enginebay.engine import wire
from enginebay.engine.loop import EngineLoop
from enginebay.engine.messages import Answer, Close, Event, NotStarted


class ServerPipe:
    """The sending end of the pipe to the server; any thread may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send one message; without a server it is lost, and `_listen` ends the process."""
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):
            wire.send(self._connection, message)

    def emit(self, event: Event) -> None:
        """Send an event; errors in it that cannot be pickled become text."""
        match event:
            case NotStarted(error):
                if not isinstance(error, ServingError):
                    error.add_note("".join(traceback.format_exception(error)))
                event = NotStarted(wire.portable(error))
            case Answer(result=BaseException() as error):
                event = replace(event, result=wire.portable(error))
        self.send(event)

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Send a log record: what `QueueHandler` asks of its queue."""
        self.send(record)

    def report_progress(self, stage: str, fraction: float) -> None:
        """Send a progress report."""
        self.send(wire.Progress(stage, fraction))


def main(
    connection: Connection,
    output: Connection,
    packed_factory: bytes,
    log_level: int,
    grace: float,
) -> None:
    """Run one engine until the server closes it or exits, or the engine dies.

    The server reads `output`, the pipe for all that libraries print, native ones, too.
    """
    _leave_signals_to_the_server()
    if os.name == "posix":
        for printed in (1, 2):
            os.dup2(output.fileno(), printed)
    faulthandler.enable()
    pipe = ServerPipe(connection)
    root = logging.getLogger()
    root.addHandler(QueueHandler(pipe))  # type: ignore[arg-type]  # it only puts
    root.setLevel(log_level)

    def create_engine() -> Engine:
        return wire.unpack_factory(packed_factory, pipe.report_progress)()

    engine_loop = EngineLoop(create_engine, pipe.emit)
    threading.Thread(
        target=_listen,
        args=(connection, engine_loop, grace),
        name="enginebay-commands",
        daemon=True,
    ).start()
    engine_loop.run()


def _listen(connection: Connection, engine_loop: EngineLoop, grace: float) -> None:
    try:
        while True:
            engine_loop.send(wire.receive(connection))
    except (EOFError, OSError):  # the server is gone
        engine_loop.send(Close())
        time.sleep(grace)
        os._exit(1)


def _leave_signals_to_the_server() -> None:
    """Ignore SIGINT and SIGTERM, which reach all processes; the server ends this one.

    It is started with SIGINT blocked, so that none arrives before this is called.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
