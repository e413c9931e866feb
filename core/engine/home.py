"""Where an engine lives: the way commands and events take between it and the event loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from core.engine.messages import Command, Event

Receive = Callable[[Event], None]


class Home(ABC):
    """Runs one engine at a time, several one after the other. Called on the event loop."""

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
