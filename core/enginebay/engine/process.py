"""The server's side of an engine in its own process."""

import asyncio
import atexit
import codecs
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from enginebay.contract.backend_settings import ReportProgress
from enginebay.contract.engine import Engine
from enginebay.contract.errors import BackendUnavailableError, ServingError
from enginebay.contract.types import GenerationRequest
from enginebay.engine import wire, worker
from enginebay.engine.executor import EventBridge, Executor, Receive
from enginebay.engine.messages import (
    Answer,
    Call,
    Close,
    Command,
    Died,
    Event,
    Exited,
    NotStarted,
    Started,
)

logger = logging.getLogger(__name__)


class ProcessExecutor(Executor):
    """Runs every engine in its own process; killed if still alive `grace` seconds after `Close`."""

    def __init__(self, create_engine: Callable[[], Engine], grace: float) -> None:
        self._create_engine = create_engine
        self._grace = grace
        self._child: _Child | None = None
        self._events: EventBridge | None = None
        self._started = False
        self._ending = False
        self._killing: asyncio.TimerHandle | None = None

    @property
    def is_ahead(self) -> bool:
        return self._events is not None and self._events.is_ahead

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self, receive: Receive) -> None:
        try:
            packed, report_progress = wire.pack_factory(self._create_engine)
        except Exception as error:
            raise BackendUnavailableError(
                "this backend cannot run in its own process; set `isolation: thread`: "
                f"{type(error).__name__}: {error}"
            ) from error

        def received(event: Event) -> None:
            match event:
                case Started():
                    self._started = True
                case NotStarted() | Died():
                    self._kill_later()
                case Exited() if self._ending:
                    event = Exited()
            receive(event)

        self._cancel_kill()
        self._started = self._ending = False
        self._events = EventBridge(received)
        self._child = _Child(packed, self._grace, report_progress, self._events)

    def send(self, command: Command) -> None:
        assert self._child is not None
        self._child.send(command)

    async def close(self) -> None:
        if self._child is None:
            return
        self._child.send(Close())
        self._kill_later()
        if not self._started:
            self._child.kill()
        await asyncio.to_thread(self._child.join)
        self._cancel_kill()

    def _kill_later(self) -> None:
        assert self._child is not None
        self._cancel_kill()
        self._ending = True
        self._killing = asyncio.get_running_loop().call_later(self._grace, self._child.kill)

    def _cancel_kill(self) -> None:
        if self._killing:
            self._killing.cancel()


class _Child:
    """One process and its three threads on this side.

    One starts it and reads its messages, one writes commands, and one passes on what it prints. So
    neither pickling nor a full pipe ever stops the event loop, and a stderr that nobody reads does
    not stop the engine.
    """

    def __init__(
        self,
        packed_factory: bytes,
        grace: float,
        report_progress: ReportProgress,
        emit: Callable[[Event], None],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        self._printed, self._their_output = context.Pipe(duplex=False)
        level = logging.getLogger().getEffectiveLevel()
        self._process = context.Process(
            target=worker.main,
            args=(self._theirs, self._their_output, packed_factory, level, grace),
            name="enginebay-engine",
        )
        self._grace = grace
        self._report_progress = report_progress
        self._emit = emit
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._killed = False
        self._stage: str | None = None
        self._thread = threading.Thread(target=self._run, name="enginebay-engine", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process; None before it has been started."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Send a command; does nothing once the process is gone."""
        self._commands.put(command)

    def kill(self) -> None:
        """Kill the process, as soon as there is one."""
        self._killed = True
        if self._process.pid is not None:
            self._process.kill()

    def join(self) -> None:
        """Wait until the process is gone and everything is freed."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with _sigint_blocked():
                self._process.start()
        except Exception as error:
            for pipe in (self._theirs, self._connection, self._their_output, self._printed):
                pipe.close()
            self._emit(Exited(f"the engine's process could not be started: {error}"))
            return
        self._theirs.close()
        self._their_output.close()
        if self._killed:
            self._process.kill()
        atexit.register(self._process.kill)
        writer = threading.Thread(target=self._write, name="enginebay-commands", daemon=True)
        writer.start()
        printer = threading.Thread(target=self._print, name="enginebay-printed", daemon=True)
        printer.start()
        unreadable = self._read()
        self._process.join(self._grace)
        self._process.kill()
        self._process.join()
        printer.join(1)  # its last words come before the news; children of it may still have more
        atexit.unregister(self._process.kill)
        self._commands.put(None)
        writer.join()
        self._connection.close()
        self._emit(Exited(unreadable or _reason(self._process.exitcode, self._stage)))

    def _read(self) -> str | None:
        """Pass on the process's messages until it ends; returns why, if one cannot be read."""
        try:
            while True:
                match wire.receive(self._connection):
                    case wire.Progress(stage, fraction):
                        self._stage = stage
                        self._report_progress(stage, fraction)
                    case logging.LogRecord() as record:
                        _log(record)
                    case event:
                        self._stage = None  # it is loaded, or has said why not
                        self._emit(event)
        except (EOFError, OSError):
            return None
        except Exception as error:
            logger.exception("a message from the engine's process cannot be read")
            self._process.kill()
            return f"a message from the engine's process cannot be read: {error}"

    def _print(self) -> None:
        """Print on stderr what the process prints, until nobody can print there any more."""
        if os.name != "posix":  # there it prints on the server's own stderr
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with self._printed, suppress(OSError):
            while data := os.read(self._printed.fileno(), 1 << 16):
                with suppress(OSError, ValueError):  # of a stderr that is closed
                    print(decoder.decode(data), end="", file=sys.stderr, flush=True)

    def _write(self) -> None:
        while command := self._commands.get():
            try:
                wire.send(self._connection, command)
            except OSError:
                return
            except Exception as error:
                self._refuse(command, error)

    def _refuse(self, command: Command, error: Exception) -> None:
        """Fail a command that cannot be pickled, alone."""
        failure = ServingError(f"the request cannot be sent to the engine: {error}")
        match command:
            case GenerationRequest(request_id=request_id):
                self._emit([(request_id, failure)])
            case Call(number=number):
                self._emit(Answer(number, failure))


def _log(record: logging.LogRecord) -> None:
    own = logging.getLogger(record.name)
    if own.isEnabledFor(record.levelno):
        own.handle(record)


def _reason(exit_code: int | None, stage: str | None) -> str:
    """`stage`: of loading, None for an engine that was loaded."""
    meanwhile = f" while {stage}" if stage else ""
    if exit_code is None or exit_code >= 0:
        return f"the engine's process exited with code {exit_code}{meanwhile}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"the engine's process was killed by {name}{meanwhile}{hint}"


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes started from this thread (the mask is inherited)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
