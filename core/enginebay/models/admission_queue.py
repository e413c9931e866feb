"""Admission to a model's engine: fair queueing by priority and API key."""

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from math import ceil

from enginebay.contract.errors import QueueFullError, ServingError

_NEWEST = 0.2
"""Weight of the latest request in the moving average of request durations."""

_LONGEST_RETRY = 60
"""Seconds; OpenAI's clients do not follow a longer `Retry-After`."""

_RETRY = 2
"""`Retry-After` in seconds before any request has ended."""


def with_headroom(max_batch_size: int | None) -> int | None:
    """How many choices to admit to an engine with this batch size; None is unlimited.

    A quarter more, so that the next ones are already tokenized, with grammars compiled, in the
    engine's own queue when others end: the engine never waits for the event loop.
    """
    return max_batch_size and max_batch_size + -(-max_batch_size // 4)


@dataclass(frozen=True, slots=True)
class GateSize:
    """How many choices an engine is given, and how many requests may wait for it.

    `max_running`: None is unlimited. `together`: how many choices the engine computes at once; the
    others that it is given wait inside it. None if that is not known.
    """

    max_running: int | None = None
    max_queue: int = 256
    together: int | None = None

    @property
    def shared(self) -> int | None:
        """How many choices may run before a key that runs one already has to wait.

        One fewer than the engine computes at once. None if no slot can be kept for other keys.
        """
        if self.max_running is None or self.max_running < 2:
            return None
        return max(1, min(self.max_running, self.together or self.max_running) - 1)


@dataclass(slots=True, eq=False)
class Place:
    """A request's ticket in a `Gate`: first a place in the queue, then running choices.

    `admitted` is done once it has been admitted or refused.
    """

    gate: "Gate"
    choices: int
    model: str
    key: str | None
    priority: int
    number: int
    goes_on: bool
    admitted: asyncio.Future[None]
    since: float | None = None

    @property
    def waits(self) -> bool:
        """Whether it is still in the queue."""
        return not self.admitted.done()

    @property
    def position(self) -> int | None:
        """How many are ahead of it at the moment; None if it is not waiting."""
        return self.gate.position_of(self) if self.waits else None

    def leave(self) -> None:
        """Release it: the request has ended or its client has left."""
        self.gate.leave(self)


@dataclass(slots=True)
class _Share:
    """One API key's share of a gate. `turn`: when it was last admitted or began to wait."""

    queue: list[Place] = field(default_factory=list)
    choices: int = 0
    turn: int = 0


class Gate:
    """Admits requests to one engine while fewer than `max_running` choices run there.

    A request for many choices neither waits until all slots are free nor can be overtaken forever.
    A key that runs nothing is next, whatever the priorities, unless the free slot was its own. Then
    the lowest priority number goes first. Among equals, the key with the fewest running choices is
    next, and among those, the key that has waited longest since its last turn. Each key's own
    requests go by priority and arrival.

    One slot is kept for keys that run nothing: see `GateSize.shared`. While one key alone runs, the
    slot is there for another key, however many choices the one has. No slot is kept before the
    first request with a key, because all requests without one are one key's.

    At most `max_queue` requests wait. When one more arrives, one of those with the highest priority
    number is refused: the last of the key that has most in the queue, so that no key can fill it
    for others. Who has waited for `queue_timeout` seconds is refused, too; 0 is no limit.

    Models that share an engine share its gate. Lives on the event loop. `clock` is in seconds.
    """

    def __init__(
        self,
        size: GateSize = GateSize(),
        queue_timeout: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self.queue_timeout = queue_timeout
        self._has_keys = False
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._shares: dict[str | None, _Share] = {}
        self._engine_requests = 0
        self._turns = 0
        self._closed: ServingError | None = None
        self._took: float | None = None

    @property
    def running(self) -> int:
        """Choices running in the engine."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """Client requests that have not been admitted yet."""
        return sum(not place.goes_on for place in self._queued())

    def running_of(self, model: str) -> int:
        """Running choices of one of the models that share the engine."""
        return self._running[model]

    def waiting_of(self, model: str) -> int:
        """Requests for one of them that have not been admitted yet."""
        return sum(place.model == model and not place.goes_on for place in self._queued())

    def join(
        self,
        choices: int = 1,
        *,
        model: str = "",
        key: str | None = None,
        priority: int = 0,
        goes_on: bool = False,
    ) -> Place:
        """Join the queue; admitted at once if there is room. Always `leave()` the place.

        `goes_on`: another part of a request that already has a place; it is never refused. Raises
        the error the gate was closed with; a full queue is an exception of `admitted`.
        """
        if self._closed and not goes_on:
            raise copy(self._closed)
        loop = asyncio.get_running_loop()
        admitted = loop.create_future()
        place = Place(self, choices, model, key, priority, self._next_turn(), goes_on, admitted)
        self._queue(place)
        self._enter(place)
        if place.waits and not goes_on and self.queue_timeout:
            timer = loop.call_later(self.queue_timeout, self._time_out, place)
            admitted.add_done_callback(lambda _: timer.cancel())
        return place

    def readmit(
        self, choices: int, *, model: str, key: str | None, priority: int, goes_on: bool
    ) -> Place:
        """A place that runs already, let in by a gate that is gone: whatever the limit."""
        admitted = asyncio.get_running_loop().create_future()
        place = Place(self, choices, model, key, priority, self._next_turn(), goes_on, admitted)
        self._queue(place)
        self._let_in(place)
        return place

    def resize(self, size: GateSize, queue_timeout: float = 0.0) -> None:
        """Admit up to another number from now on; what runs or waits already, does so."""
        self.size, self.queue_timeout = size, queue_timeout
        self._admit()

    def leave(self, place: Place) -> None:
        """Release a place in any state; calling it again has no effect."""
        share = self._shares.get(place.key)
        if share is None:
            return
        ran = place.since is not None
        if place.since is not None:
            took = self._clock() - place.since
            self._took = took if self._took is None else self._took + _NEWEST * (took - self._took)
            self._running[place.model] -= place.choices
            share.choices -= place.choices
            self._engine_requests -= 1
            place.since = None
        elif place in share.queue:
            share.queue.remove(place)
        if not share.queue and not share.choices:
            del self._shares[place.key]
        self._admit(share if ran else None)

    def close(self, error: ServingError) -> None:
        """Waiting and new requests get a copy of `error`; running ones continue."""
        self._closed = error
        for place in self._queued():
            if not place.goes_on:
                self._refuse(place, copy(error))

    def refuse(self, model: str, error: ServingError) -> None:
        """Requests waiting for this model get a copy of `error`; running ones continue."""
        for place in self._queued():
            if place.model == model and not place.goes_on:
                self._refuse(place, copy(error))

    def order(self) -> Iterator[Place]:
        """The waiting requests in the order of admission, if nothing ends or arrives meanwhile."""
        shares = [replace(share, queue=list(share.queue)) for share in self._shares.values()]
        turn = self._turns
        while share := self._next_share(shares):
            yield _take_from(share, turn := turn + 1)

    def position_of(self, place: Place) -> int | None:
        """How many are ahead of a waiting place at the moment; None if that is not known."""
        return next((at for at, other in enumerate(self.order()) if other is place), None)

    @property
    def retry_after(self) -> int:
        """Estimated seconds until half of the waiting requests have been admitted."""
        if self._took is None:
            return _RETRY
        turns = max(1.0, self.waiting / 2)
        seconds = self._took * turns / max(1, self._engine_requests)
        return min(_LONGEST_RETRY, max(1, ceil(seconds)))

    def _queued(self) -> list[Place]:
        return [place for share in self._shares.values() for place in share.queue]

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _queue(self, place: Place) -> None:
        share = self._shares.setdefault(place.key, _Share())
        self._has_keys |= place.key is not None
        if not share.queue:
            share.turn = place.number
        insort(share.queue, place, key=lambda other: (other.priority, other.number))

    def _enter(self, place: Place) -> None:
        """Decide on a place that has just begun to wait."""
        self._admit()
        if place.waits and not place.goes_on and self.waiting > self.size.max_queue:
            self._refuse(self._first_to_refuse(place), self._full())

    def _let_in(self, place: Place) -> None:
        """Admit a waiting place, whoever is ahead of it."""
        share = self._shares[place.key]
        share.queue.remove(place)
        share.choices += place.choices
        share.turn = self._next_turn()
        self._begin(place)

    def _begin(self, place: Place) -> None:
        self._running[place.model] += place.choices
        self._engine_requests += 1
        place.since = self._clock()
        place.admitted.set_result(None)

    def _admit(self, gives_up: _Share | None = None) -> None:
        """Let in whoever is next, while there is room. `gives_up`: the key that has left a slot."""
        shares = self._shares.values()
        while (share := self._next_share(shares, gives_up)) and self._has_room(share):
            place = _take_from(share, self._next_turn())
            if not place.waits:  # its client has left and it is about to
                self._shares[place.key].choices -= place.choices
                continue
            self._begin(place)

    @property
    def _kept_from(self) -> int | None:
        """From how many running choices on a slot is kept; None if none is."""
        return self.size.shared if self._has_keys else None

    def _next_share(
        self, shares: Iterable[_Share], gives_up: _Share | None = None
    ) -> _Share | None:
        """The key that is next; None if nobody waits."""
        keeps = self._kept_from is not None

        def rank(share: _Share) -> tuple[bool, int, int, int]:
            runs = keeps and (share.choices > 0 or share is gives_up)
            return runs, share.queue[0].priority, share.choices, share.turn

        return min((share for share in shares if share.queue), key=rank, default=None)

    def _has_room(self, share: _Share) -> bool:
        """Whether there is a slot for the key's next request."""
        most, shared = self.size.max_running, self._kept_from
        if most is None:
            return True
        if shared is None:
            return self.running < most
        if share.choices:
            return self.running < shared
        keys = sum(each.choices > 0 for each in self._shares.values())
        return self.running < most or keys < 2

    def _first_to_refuse(self, newcomer: Place) -> Place:
        queues = [
            [place for place in share.queue if not place.goes_on] for share in self._shares.values()
        ]
        last = max(
            filter(None, queues),
            key=lambda queue: (queue[-1].priority, len(queue), queue[-1].key == newcomer.key),
        )
        return last[-1]

    def _time_out(self, place: Place) -> None:
        if place.waits:
            seconds = self.retry_after
            error = QueueFullError(
                f"the model is busy, and requests may wait for {self.queue_timeout:g} s; "
                f"try again in {seconds} s",
                retry_after=seconds,
            )
            self._refuse(place, error)

    def _full(self) -> QueueFullError:
        seconds = self.retry_after
        return QueueFullError(
            f"the model is busy, and its queue of {self.size.max_queue} requests is full; "
            f"try again in {seconds} s",
            retry_after=seconds,
        )

    def _refuse(self, place: Place, error: ServingError) -> None:
        self.leave(place)
        if place.waits:
            place.admitted.set_exception(error)
            place.admitted.exception()  # mark as retrieved: its client may have left


def _take_from(share: _Share, turn: int) -> Place:
    """The key's next place, removed from its queue and counted as admitted at `turn`."""
    place = share.queue.pop(0)
    share.choices += place.choices
    share.turn = turn
    return place
