"""Which replicas an application has, as the routers in this process were told.

Serve makes a router for each handle, out of a copy of its class, and gives it nothing that it could
share with whoever made the handle. So both look here, by the application's name.
"""

from collections import defaultdict
from collections.abc import Callable
from threading import Lock


class Fleet:
    """The names of an application's replicas that take requests. To be used on any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._replicas: frozenset[str] = frozenset()
        self._listeners: list[Callable[[], None]] = []

    @property
    def replicas(self) -> frozenset[str]:
        """Those that there are now."""
        return self._replicas

    def change(self, replicas: frozenset[str]) -> None:
        """There are others now: listeners are called, on this thread."""
        with self._lock:
            if replicas == self._replicas:
                return
            self._replicas = replicas
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def lose(self, replica: str) -> None:
        """One is known to be dead."""
        self.change(self._replicas - {replica})

    def listen(self, listener: Callable[[], None]) -> None:
        """Call it whenever there are others, until `ignore`."""
        with self._lock:
            self._listeners.append(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners.remove(listener)


_fleets: defaultdict[str, Fleet] = defaultdict(Fleet)


def fleet_of(application: str) -> Fleet:
    """The same one for all who ask for it in this process."""
    return _fleets[application]
