"""A server as one of several: what it holds at the ledger, and what others ask of it."""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any
from uuid import uuid4

from enginebay.contract.errors import ServingError
from enginebay.models.admission_queue import GateSize
from enginebay.models.loading.clock import Clock, LoopClock, pause
from enginebay.server.usage.records import utc_now
from enginebay_cluster.contract import Cluster
from enginebay_cluster.fronts.connection import Connection
from enginebay_cluster.fronts.kept_settings import KeptSettings
from enginebay_cluster.fronts.said import Beat, Hello, Holding, Order, Settings
from enginebay_cluster.fronts.timing import BEAT

logger = logging.getLogger(__name__)

Handler = Callable[[Any], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class Ticket:
    """Something that this front holds or asks for. `runs`: it was let in, or is counted."""

    number: int
    holding: Holding
    runs: bool = False


class Front:
    """This server's side of the ledger, which `ledger` calls; on the server's event loop.

    `create` makes the ledger if the cluster has none. `known`: what was set while servers run.
    `handlers` do what others ask for, by kind.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        create: Callable[[], Any],
        *,
        clock: Clock | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.id = uuid4().hex
        self.name = name
        self.clock = clock or LoopClock()
        self.known = KeptSettings()
        self.handlers: dict[str, Handler] = {}
        self.ledger = Connection(cluster, self, create, self.clock, now)
        self.ledger.when_heard.append(self._resize_soon)
        self._tickets: dict[int, Ticket] = {}
        self._numbers = count(1)
        self._newest = 0
        self._beats = count()
        self._left: list[int] = []
        self._sizes: dict[str, GateSize] = {}
        self._untold: set[str] = set()

    def start(self) -> None:
        """Connect, and stay connected until `close`, in the background."""
        self.ledger.start()
        self.ledger.spawn(self._do_orders())

    async def close(self) -> None:
        """Give back all that is held."""
        await self.ledger.close()

    def ticket(self, holding: Holding) -> Ticket:
        """A new ticket for something that is about to be asked for."""
        self._newest = next(self._numbers)
        ticket = self._tickets[self._newest] = Ticket(self._newest, holding)
        return ticket

    def forget(self, ticket: Ticket) -> None:
        """It was refused: the ledger holds nothing for it."""
        self._tickets.pop(ticket.number, None)

    def give_back(self, ticket: Ticket) -> None:
        """Tell the ledger that it is not needed any more, some time soon."""
        self._tickets.pop(ticket.number, None)
        if not self._left:
            self.ledger.spawn(self._leave())
        self._left.append(ticket.number)

    def resize(self, engine: str, size: GateSize) -> None:
        """Have the ledger let so many choices into an engine; told until it is known there."""
        self._sizes[engine] = size
        self._untold.add(engine)
        self._resize_soon()

    def hello(self) -> Hello:
        return Hello(
            name=self.name,
            beat=self.beat(),
            runs={number: each.holding for number, each in self._tickets.items() if each.runs},
            gates=dict(self._sizes),
            settings=self.known.all(),
        )

    def greeted(self, settings: Settings) -> None:
        handler = self.handlers.get("settings")
        if handler and self.known.lacks(settings):
            self.ledger.spawn(handler(settings))

    def beat(self) -> Beat:
        alive = tuple(self._tickets)
        return Beat(number=next(self._beats), newest=self._newest, alive=alive)

    def lacks(self, numbers: frozenset[int]) -> bool:
        return any(each.runs for each in self._tickets.values() if each.number in numbers)

    async def _leave(self) -> None:
        left, self._left = self._left, []
        try:
            await self.ledger.call_once("leave", left)
        except ServingError:  # the next sign of life says what is still held
            self.ledger.hurry()

    def _resize_soon(self) -> None:
        if self._untold:
            self.ledger.spawn(self._resize())

    async def _resize(self) -> None:
        while self._untold:
            engine = self._untold.pop()
            try:
                await self.ledger.call_once("resize", engine, self._sizes[engine])
            except ServingError:
                self._untold.add(engine)
                return

    async def _do_orders(self) -> None:
        """Do what other fronts ask for, each thing once."""
        ledger, done = "", 0
        await self.ledger.connected()
        while True:
            try:
                now, orders = await self.ledger.call("orders", (ledger, done), patience=math.inf)
            except ServingError:  # which the log has
                await pause(self.clock, BEAT)
                continue
            if now != ledger:
                ledger, done = now, 0
            for order in orders:
                done = max(done, order.number)
                self.ledger.spawn(self._do(order))

    async def _do(self, order: Order) -> None:
        handler = self.handlers.get(order.kind, _unknown)
        try:
            answer = await handler(order.value)
        except ServingError as error:
            answer = error
        except Exception as error:
            logger.exception("what another server has asked for has failed: %s", order.kind)
            answer = ServingError(f"{type(error).__name__}: {error}")
        try:
            await self.ledger.call_once("answer", order.number, answer)
        except ServingError as error:
            logger.warning("what another server has asked for is not answered: %s", error)


async def _unknown(value: Any) -> Any:
    raise ServingError("this server does not know what it is asked for; update it")
