"""The fronts that a ledger knows, and what each of them holds."""

from collections.abc import Iterator
from typing import Protocol

from enginebay.contract.errors import RequestCancelledError, ServingError
from enginebay.models.admission_queue import Place
from enginebay.models.loading.clock import Clock
from enginebay.server.usage.request_count import RequestCount
from enginebay_cluster.fronts.said import Beat, UnknownFrontError
from enginebay_cluster.fronts.timing import SILENCE


class Held(Protocol):
    """Something that a front holds until it gives it back."""

    def give_back(self, why: ServingError) -> None:
        """The front holds it no more; who still waits for it gets `why`."""


class HeldPlace:
    """A place at a gate, waiting or running."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def give_back(self, why: ServingError) -> None:
        self.place.leave()
        if self.place.waits:
            self.place.admitted.set_exception(why)
            self.place.admitted.exception()  # mark as retrieved: nobody may be asking any more


class HeldCount:
    """A request that is counted."""

    def __init__(self, count: RequestCount) -> None:
        self._count = count

    def give_back(self, why: ServingError) -> None:
        self._count.end()


class Member:
    """A front. `seen`: when it was heard of last; `held`: what it holds, by ticket."""

    def __init__(self, id: str, name: str, now: float) -> None:
        self.id = id
        self.name = name
        self.seen = now
        self.held: dict[int, Held] = {}
        self._beat = Beat(number=-1, newest=-1, alive=())
        self._alive: frozenset[int] = frozenset()

    def has_left(self, ticket: int) -> bool:
        """Whether it has said that it does not want this any more, before it was asked for."""
        return ticket <= self._beat.newest and ticket not in self._alive

    def beats(self, beat: Beat) -> list[int]:
        """Drop what it does not hold any more; tickets that it has and that are not held here.

        A beat that was overtaken by a later one says nothing.
        """
        if beat.number <= self._beat.number:
            return []
        self._beat, self._alive = beat, frozenset(beat.alive)
        for ticket in [ticket for ticket in self.held if self.has_left(ticket)]:
            self.give_back(ticket)
        return [ticket for ticket in beat.alive if ticket not in self.held]

    def give_back(self, ticket: int) -> None:
        """It holds this no more; an unknown ticket is no error."""
        if held := self.held.pop(ticket, None):
            held.give_back(RequestCancelledError("the request has left the queue"))

    def give_back_all(self) -> None:
        """It has gone."""
        while self.held:
            _, held = self.held.popitem()
            held.give_back(_unknown(self.id))


class Members:
    """All fronts that are there, by their ids."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def greet(self, id: str, name: str) -> Member:
        """A front that says who it is, be it once more."""
        member = self._members.setdefault(id, Member(id, name, self._clock.time()))
        member.seen = self._clock.time()
        return member

    def hear(self, id: str) -> Member:
        """A front that is heard of. `UnknownFrontError` for one that has to say who it is first."""
        member = self._members.get(id)
        if member is None:
            raise _unknown(id)
        member.seen = self._clock.time()
        return member

    def part(self, id: str) -> None:
        """A front has gone, and what it held is free."""
        if member := self._members.pop(id, None):
            member.give_back_all()

    def silent(self) -> list[Member]:
        """Those that were not heard of for too long."""
        before = self._clock.time() - SILENCE
        return [member for member in self if member.seen < before]


def _unknown(id: str) -> UnknownFrontError:
    return UnknownFrontError(f"the front {id} is not known here")
