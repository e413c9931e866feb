"""A server as one of several: its connection to the ledger, and what it holds there."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, NoReturn
from uuid import uuid4

from core.contract.cluster import Cluster, ClusterError, SharedObject
from core.contract.errors import ServingError
from core.models.loading.clock import Clock, LoopClock
from core.server.fronts.kept_settings import KeptSettings
from core.server.fronts.said import (
    Beat,
    GateSize,
    Hello,
    Holding,
    Order,
    UnknownFrontError,
)
from core.server.fronts.timing import BEAT, PATIENCE, RETRY, pause, within
from core.server.usage.records import Trouble, utc_now

logger = logging.getLogger(__name__)

LEDGER = "ledger"
"""The name of the shared object."""

_SHARE_AGAIN = 5
"""Failures in a row after which the object may be another one, and is asked for by its name."""

_CONNECTING = "this server is still connecting to its cluster"

_SILENT = "the process that has the limits which servers share does not answer"

_ANSWER = 5.0
"""Seconds without an answer after which the ledger counts as unreachable."""

_PARTING = 2
"""Seconds that the ledger gets to hear that a front ends."""

Handler = Callable[[Any], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class Ticket:
    """Something that this front holds or asks for. `runs`: it was let in, or is counted."""

    number: int
    holding: Holding
    runs: bool = False


class Front:
    """This server's side of the ledger; everything happens on the server's event loop.

    `create` makes the ledger if the cluster has none. What is held there is told again to one that
    does not know it, so that limits hold again after a ledger was lost. `patience`: for how many
    seconds calls wait for a ledger that cannot be reached. `trouble`: why it cannot be, and since
    when. `known`: what was set while servers run. `handlers` do what others ask for, by kind; all
    of `when_heard` are called after each sign of life that has arrived.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        create: Callable[[], Any],
        *,
        clock: Clock | None = None,
        now: Callable[[], datetime] = utc_now,
        patience: float = PATIENCE,
    ) -> None:
        self.id = uuid4().hex
        self.name = name
        self.clock = clock or LoopClock()
        self.patience = patience
        self.known = KeptSettings()
        self.handlers: dict[str, Handler] = {}
        self.when_heard: list[Callable[[], object]] = []
        self.trouble: Trouble | None = None
        self._cluster = cluster
        self._create = create
        self._now = now
        self._shared: SharedObject | None = None
        self._tickets: dict[int, Ticket] = {}
        self._numbers = count(1)
        self._newest = 0
        self._beats = count()
        self._left: list[int] = []
        self._sizes: dict[str, GateSize] = {}
        self._untold: set[str] = set()
        self._greetings = 0
        self._greeting = asyncio.Lock()
        self._up = asyncio.Event()
        self._given_up = asyncio.Event()
        self._hurry = asyncio.Event()
        self._down_since: float | None = None
        self._failures = 0
        self._sharing: asyncio.Task[SharedObject] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Connect, and stay connected until `close`, in the background."""
        self._down_since = self.clock.time()
        self.trouble = Trouble(self._now(), _CONNECTING)
        self.spawn(self._stay())
        self.spawn(self._do_orders())

    async def close(self) -> None:
        """Give back all that is held."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._shared and self._up.is_set():
            try:
                async with asyncio.timeout(_PARTING):
                    await self._shared.call("goodbye", self.id)
            except (ServingError, TimeoutError) as error:
                logger.warning("what this server held in the cluster is free later: %s", error)
        self._shared = None

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """A task that ends with the front, at the latest."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def call(self, method: str, *args: Any, patience: float | None = None) -> Any:
        """What a method of the ledger returns, as this front calls it.

        It is called again while the ledger cannot be reached, which it may be for `patience`
        seconds, or the front's; `ClusterError` after that. Raises what the method raises.
        """
        patience = self.patience if patience is None else patience
        since: float | None = None
        while True:
            begun = self.clock.time()
            try:
                return await self._call(method, *args)
            except ClusterError as error:
                down = self._failed(error)
                if since is None or begun > since + patience:  # it has waited there meanwhile
                    since = min(self.clock.time(), down)
                left = since + patience - self.clock.time()
                if left <= 0:
                    raise ClusterError(_advice(error)) from error
                await pause(self.clock, min(RETRY, left))
                if not await within(self.clock, max(0.0, left - RETRY), self._up):
                    raise ClusterError(_advice(error)) from error

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
            self.spawn(self._leave())
        self._left.append(ticket.number)

    def resize(self, engine: str, size: GateSize) -> None:
        """Have the ledger let so many choices into an engine; told until it is known there."""
        self._sizes[engine] = size
        self._untold.add(engine)
        self.spawn(self._resize())

    async def _leave(self) -> None:
        left, self._left = self._left, []
        try:
            await self._call("leave", left)
        except ServingError:  # the next sign of life says what is still held
            self._hurry.set()

    async def _resize(self) -> None:
        while self._untold:
            engine = self._untold.pop()
            try:
                await self._call("resize", engine, self._sizes[engine])
            except ServingError:
                self._untold.add(engine)
                return

    async def _call(self, method: str, *args: Any) -> Any:
        while True:
            shared, greetings = self._shared, self._greetings
            if shared is None:
                raise ClusterError(self.trouble.reason if self.trouble else _CONNECTING)
            try:
                return await self._answer(shared.call(method, self.id, *args))
            except UnknownFrontError:
                await self._greet(shared, greetings)
            except ServingError:
                raise
            except Exception as error:  # a fault of the ledger's
                logger.exception("%s of the cluster's ledger has failed", method)
                raise ServingError(f"what servers share has failed: {error}") from error

    async def _answer(self, called: Coroutine[Any, Any, Any]) -> Any:
        """What a call returns; `ClusterError` if the ledger is given up before it does."""
        given_up = self._given_up
        answer = asyncio.ensure_future(called)
        over = asyncio.ensure_future(given_up.wait())
        try:
            await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise ClusterError(_SILENT)
        finally:
            answer.cancel()
            over.cancel()

    async def _greet(self, shared: SharedObject, greetings: int) -> None:
        """Say who this is and what it holds, unless that was done since the n-th time."""
        async with self._greeting:
            if self._greetings == greetings:
                settings = await self._answer(shared.call("hello", self.id, self._hello()))
                self._greetings += 1
                handler = self.handlers.get("settings")
                if handler and self.known.lacks(settings):
                    self.spawn(handler(settings))

    def _hello(self) -> Hello:
        return Hello(
            name=self.name,
            beat=self._beat(),
            runs={number: each.holding for number, each in self._tickets.items() if each.runs},
            gates=dict(self._sizes),
            settings=self.known.all(),
        )

    def _beat(self) -> Beat:
        alive = tuple(self._tickets)
        return Beat(number=next(self._beats), newest=self._newest, alive=alive)

    async def _stay(self) -> None:
        """Be connected, and give a sign of life every two seconds."""
        while True:
            try:
                if self._shared is None or self._sharing or self._failures >= _SHARE_AGAIN:
                    self._shared = await self._ask_for_ledger()
                missing = await self._beaten()
                if any(each.number in missing and each.runs for each in self._tickets.values()):
                    await self._greet(self._shared, self._greetings)
            except ClusterError as error:
                self._failed(error)
                wait = RETRY
            except Exception as error:
                logger.exception("this server could not tell its cluster that it is there")
                self._failed(ClusterError(f"{type(error).__name__}: {error}"))
                wait = BEAT
            else:
                self._heard()
                wait = BEAT
            self._hurry.clear()
            await within(self.clock, wait, self._hurry)

    async def _ask_for_ledger(self) -> SharedObject:
        """The object of that name, asked for once at a time. Gives the ledger up meanwhile.

        Clusters may wait for their head for minutes, on a thread.
        """
        if self._sharing is None:
            self._failures = 0
            self._sharing = self.spawn(self._cluster.share(LEDGER, self._create))
        sharing, found = self._sharing, asyncio.Event()
        sharing.add_done_callback(lambda _: found.set())
        if not await within(self.clock, _ANSWER, found):
            self._give_up()
        self._sharing = None
        return sharing.result()

    def _give_up(self) -> NoReturn:
        """What was asked of the ledger fails."""
        self._given_up.set()
        self._given_up = asyncio.Event()
        raise ClusterError(_SILENT)

    async def _beaten(self) -> frozenset[int]:
        """Give a sign of life; tickets that the ledger does not know. Gives it up if it is silent.

        Clusters may notice only after a minute that a machine is frozen.
        """
        beat = asyncio.ensure_future(self._call("beat", self._beat()))
        answered = asyncio.Event()
        beat.add_done_callback(lambda _: answered.set())
        try:
            if not await within(self.clock, _ANSWER, answered):
                self._give_up()
            return frozenset(beat.result())
        finally:
            beat.cancel()

    async def _do_orders(self) -> None:
        """Do what other fronts ask for, each thing once."""
        ledger, done = "", 0
        await self._up.wait()
        while True:
            try:
                now, orders = await self._call("orders", (ledger, done))
            except ClusterError as error:
                self._failed(error)
                await pause(self.clock, RETRY)
                await self._up.wait()
                continue
            except ServingError:  # which the log has
                await pause(self.clock, BEAT)
                continue
            if now != ledger:
                ledger, done = now, 0
            for order in orders:
                done = max(done, order.number)
                self.spawn(self._do(order))

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
            await self._call("answer", order.number, answer)
        except ServingError as error:
            logger.warning("what another server has asked for is not answered: %s", error)

    def _heard(self) -> None:
        if self.trouble:
            logger.info("the cluster's shared limits can be reached again")
        self._down_since, self.trouble, self._failures = None, None, 0
        self._up.set()
        if self._untold:
            self.spawn(self._resize())
        for listener in self.when_heard:
            listener()

    def _failed(self, error: ServingError) -> float:
        """Since when the ledger cannot be reached."""
        if self._up.is_set():
            self._up.clear()
            self._hurry.set()
        self._failures += 1
        if self._down_since is None:
            self._down_since = self.clock.time()
        if self.trouble is None or self.trouble.reason != error.message:
            since = self.trouble.since if self.trouble else self._now()
            self.trouble = Trouble(since, error.message)
            logger.warning("the cluster's shared limits cannot be reached: %s", error.message)
        return self._down_since


def _advice(error: ServingError) -> str:
    return (
        "the limits that servers of the cluster share cannot be reached, so this request cannot be "
        f"counted: {error.message}; try again soon, or see `enginebay cluster status` on the server"
    )


async def _unknown(value: Any) -> Any:
    raise ServingError("this server does not know what it is asked for; update it")
