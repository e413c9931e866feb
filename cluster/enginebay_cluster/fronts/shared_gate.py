"""The gate of an engine that several fronts send requests to."""

import time
from collections.abc import Callable, Mapping

from enginebay.contract.errors import ServingError
from enginebay.models.admission_queue import Gate, GateSize, Place
from enginebay_cluster.fronts.front import Front, Ticket
from enginebay_cluster.fronts.said import Turn


class SharedGate(Gate):
    """The places of this front at a gate that the ledger has.

    The ledger decides who is next, of all fronts together, and whom it refuses for a full queue.
    Everything else is done here, for this front's requests: it numbers what runs and waits, and
    refuses who has waited for `queue_timeout` seconds. `clock` is in seconds.
    """

    def __init__(
        self,
        front: Front,
        engine: str,
        size: GateSize,
        queue_timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(size, queue_timeout, clock=clock)
        self._front = front
        self._engine = engine
        self._tickets: dict[Place, Ticket] = {}
        self._ahead: Mapping[int, int] = {}
        front.resize(engine, size)

    def resize(self, size: GateSize, queue_timeout: float = 0.0) -> None:
        before = self.size
        super().resize(size, queue_timeout)
        if size != before:
            self._front.resize(self._engine, size)

    def leave(self, place: Place) -> None:
        super().leave(place)
        if ticket := self._tickets.pop(place, None):
            self._front.give_back(ticket)

    def position_of(self, place: Place) -> int | None:
        ticket = self._tickets.get(place)
        return self._ahead.get(ticket.number) if ticket else None

    def use_positions(self, ahead: Mapping[int, int]) -> None:
        """How many are ahead of waiting places of all fronts, by tickets of this front."""
        self._ahead = ahead

    def _enter(self, place: Place) -> None:
        turn = Turn(
            engine=self._engine,
            choices=place.choices,
            model=place.model,
            key=place.key,
            priority=place.priority,
            goes_on=place.goes_on,
        )
        ticket = self._tickets[place] = self._front.ticket(turn)
        self._front.ledger.spawn(self._ask(place, ticket, turn))

    def _admit(self, gives_up: object = None) -> None:
        """The ledger does that."""

    async def _ask(self, place: Place, ticket: Ticket, turn: Turn) -> None:
        refused: ServingError | None
        try:
            refused = await self._front.ledger.call("join", ticket.number, turn)
        except ServingError as error:
            refused = error
        if self._tickets.get(place) is not ticket:  # it has left, perhaps before it was asked for
            if refused is None:
                self._front.give_back(ticket)
        elif refused:
            self._front.forget(self._tickets.pop(place))
            self._refuse(place, refused)
        elif place.waits:
            ticket.runs = True
            self._let_in(place)
