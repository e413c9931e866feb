"""Where an engine lives: the way commands and events take between it and the event loop."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from core.engine.messages import Command, Event

Receive = Callable[[Event], None]


_AHEAD = 32


class Crossing:
    """Brings events from another thread to the event loop, which made it.

    A call waits while many are on their way, lest an engine whose steps cost next to nothing leaves
    the event loop no time for anything but receiving.
    """

    def __init__(self, receive: Receive) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._room = threading.Semaphore(_AHEAD)

    def __call__(self, event: Event) -> None:
        self._room.acquire()
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._arrive, event)

    def _arrive(self, event: Event) -> None:
        self._room.release()
        self._receive(event)


class Home(ABC):
    """Runs one engine at a time, several one after the other. Called on the event loop."""

    @property
    def pid(self) -> int | None:
        """The process that the engine lives in, None for the server's own."""
        return None

    @abstractmethod
    def begin(self, receive: Receive) -> None:
        """Build an engine. `receive` is called on the event loop, `Gone` is its last event.

        Called again only after `Gone`. Raises `BackendUnavailableError` when it cannot be tried.
        """

    @abstractmethod
    def send(self, command: Command) -> None:
        """Send a command; never blocks. When the engine is gone, nothing happens."""

    @abstractmethod
    async def end(self) -> None:
        """Close the engine if there is one, and free everything. Called once, last."""
