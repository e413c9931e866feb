"""Memory for the bodies of requests that are still arriving or being read."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

FREE = 1 << 16
"""Bytes of a body that need no room."""

_BODIES = 4
"""Largest bodies for which there is room in all; half of them may belong to one client."""


@dataclass(eq=False, slots=True)
class _Waiting:
    client: str
    size: int
    granted: asyncio.Event = field(default_factory=asyncio.Event)


class BodyRoom:
    """Room for as many bytes of bodies as four bodies of the largest size have.

    A body gets all of its room before it is received, so that each body that has begun can end.
    Others wait, first come, first served, while the system holds their clients up. One client gets
    at most half of the room. `largest`: bytes of the largest body.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._used: Counter[str] = Counter()
        self._waiting: deque[_Waiting] = deque()

    async def take(self, client: str, size: int) -> "BodyShare":
        """Wait until there is room for a body of this size, which is at most the largest."""
        waiting = _Waiting(client, size)
        self._waiting.append(waiting)
        self._grant()
        try:
            await waiting.granted.wait()
        except BaseException:
            if waiting.granted.is_set():
                self.give_back(client, size)
            else:
                self._waiting.remove(waiting)
                self._grant()
            raise
        return BodyShare(self, client, size)

    def give_back(self, client: str, size: int) -> None:
        """Let others have so many bytes of a client's room."""
        self._used[client] -= size
        if not self._used[client]:
            del self._used[client]
        self._grant()

    def _grant(self) -> None:
        """Give room to all who can have it now; nobody overtakes who waits for others' room."""
        most = _BODIES * self.largest
        for waiting in list(self._waiting):
            if self._used[waiting.client] + waiting.size > most // 2:
                continue  # its own bodies have to end first
            if self._used.total() + waiting.size > most:
                return
            self._used[waiting.client] += waiting.size
            self._waiting.remove(waiting)
            waiting.granted.set()


@dataclass(slots=True)
class BodyShare:
    """The room of one body."""

    room: BodyRoom
    client: str
    size: int

    def shrink(self, size: int) -> None:
        """Keep room for this many bytes; none for a body that is small, or not needed any more."""
        size = size if size > FREE else 0
        if size < self.size:
            self.room.give_back(self.client, self.size - size)
            self.size = size
