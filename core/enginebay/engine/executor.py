"""Where an engine runs: `Executor`, and `ThreadExecutor` for a thread of this process."""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from enginebay.contract.engine import Engine
from enginebay.engine.loop import EngineLoop
from enginebay.engine.messages import Close, Command, Event, Exited

Receive = Callable[[Event], None]


_MAX_PENDING = 32


class EventBridge:
    """Passes events from other threads to the event loop that created it.

    A call blocks while too many events are pending, so that an engine with very short steps cannot
    starve the event loop.
    """

    def __init__(self, receive: Receive) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._room = threading.Semaphore(_MAX_PENDING)
        self._steps: deque[Event] = deque()  # on their way; of a kind that threads can share

    @property
    def is_ahead(self) -> bool:
        """Whether the output of more steps is on its way."""
        return bool(self._steps)

    def __call__(self, event: Event) -> None:
        self._room.acquire()
        if isinstance(event, list):
            self._steps.append(event)
        with suppress(RuntimeError):  # the event loop is closed: nothing can receive it
            self._loop.call_soon_threadsafe(self._arrive, event)

    def _arrive(self, event: Event) -> None:
        self._room.release()
        if isinstance(event, list):
            self._steps.popleft()
        self._receive(event)


class Executor(ABC):
    """Runs engines, one at a time. Every method is called on the event loop."""

    @property
    @abstractmethod
    def is_ahead(self) -> bool:
        """Whether the engine has made more steps than have been received."""

    @property
    def pid(self) -> int | None:
        """The process the engine runs in, None for the server's own."""
        return None

    @abstractmethod
    def start(self, receive: Receive) -> None:
        """Build an engine. `receive` is called on the event loop, `Exited` is its last event.

        Called again only after `Exited`. Raises `BackendUnavailableError` for an engine that this
        executor cannot run.
        """

    @abstractmethod
    def send(self, command: Command) -> None:
        """Send a command; never blocks. Does nothing once the engine is gone."""

    @abstractmethod
    async def close(self) -> None:
        """Close the engine if there is one, and free everything. Called once, last."""


class ThreadExecutor(Executor):
    """Runs every engine on one thread: built, stepped and closed there."""

    def __init__(self, create_engine: Callable[[], Engine]) -> None:
        self._create_engine = create_engine
        self._runs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._engine_loop: EngineLoop | None = None
        self._events: EventBridge | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_ahead(self) -> bool:
        return self._events is not None and self._events.is_ahead

    def start(self, receive: Receive) -> None:
        emit = self._events = EventBridge(receive)
        self._engine_loop = EngineLoop(self._create_engine, emit)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="enginebay-engine", daemon=True)
            self._thread.start()
        self._runs.put(partial(_run_engine, self._engine_loop, emit))

    def send(self, command: Command) -> None:
        assert self._engine_loop is not None
        self._engine_loop.send(command)

    async def close(self) -> None:
        if self._engine_loop is None or self._thread is None:
            return
        self._engine_loop.send(Close())
        self._runs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while run := self._runs.get():
            run()


def _run_engine(engine_loop: EngineLoop, emit: Receive) -> None:
    try:
        engine_loop.run()
    finally:
        emit(Exited())
