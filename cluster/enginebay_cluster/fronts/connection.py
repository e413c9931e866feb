"""A front's connection to the ledger: calls, signs of life, and what is wrong while it is lost."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, NoReturn, Protocol

from enginebay.contract.errors import ServingError
from enginebay.models.loading.clock import Clock, pause, within
from enginebay.server.usage.records import Trouble
from enginebay_cluster.contract import Cluster, ClusterError, SharedObject
from enginebay_cluster.fronts.said import Beat, Hello, Settings, UnknownFrontError
from enginebay_cluster.fronts.timing import BEAT, PATIENCE, RETRY

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


class Member(Protocol):
    """Whose connection it is: what it tells the ledger, and hears from it."""

    @property
    def id(self) -> str: ...

    def hello(self) -> Hello:
        """What a ledger has to know that does not know this front."""

    def greeted(self, settings: Settings) -> None:
        """A ledger knows it now, and says what was set at any front."""

    def beat(self) -> Beat:
        """The next sign of life."""

    def lacks(self, numbers: frozenset[int]) -> bool:
        """Whether something runs here with one of these tickets, which the ledger has lost."""


class Connection:
    """Made by `start`, and kept until `close`; everything happens on the server's event loop.

    `create` makes the ledger if the cluster has none. A ledger that does not know `member` is told
    again what is held there, so that limits hold again after a ledger was lost. `patience`: for how
    many seconds calls wait for one that cannot be reached. `trouble`: why it cannot be, and since
    when. All of `when_heard` are called after each sign of life that has arrived.
    """

    def __init__(
        self,
        cluster: Cluster,
        member: Member,
        create: Callable[[], Any],
        clock: Clock,
        now: Callable[[], datetime],
        patience: float = PATIENCE,
    ) -> None:
        self.patience = patience
        self.when_heard: list[Callable[[], object]] = []
        self.trouble: Trouble | None = None
        self._cluster = cluster
        self._member = member
        self._create = create
        self._clock = clock
        self._now = now
        self._shared: SharedObject | None = None
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
        """Connect, and stay connected, in the background."""
        self._down_since = self._clock.time()
        self.trouble = Trouble(self._now(), _CONNECTING)
        self.spawn(self._stay())

    async def close(self) -> None:
        """End all tasks, and have the ledger forget this front."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._shared and self._up.is_set():
            try:
                async with asyncio.timeout(_PARTING):
                    await self._shared.call("goodbye", self._member.id)
            except (ServingError, TimeoutError) as error:
                logger.warning("what this server held in the cluster is free later: %s", error)
        self._shared = None

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """A task that ends with the connection, at the latest."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def connected(self) -> None:
        """Return when the ledger can be reached."""
        await self._up.wait()

    async def call(self, method: str, *args: Any, patience: float | None = None) -> Any:
        """What a method of the ledger returns, as this front calls it.

        It is called again while the ledger cannot be reached, which it may be for `patience`
        seconds, or those of the connection; `ClusterError` after that. Raises what the method
        raises.
        """
        patience = self.patience if patience is None else patience
        since: float | None = None
        while True:
            begun = self._clock.time()
            try:
                return await self.call_once(method, *args)
            except ClusterError as error:
                down = self._failed(error)
                if since is None or begun > since + patience:  # it has waited there meanwhile
                    since = min(self._clock.time(), down)
                left = since + patience - self._clock.time()
                if left <= 0:
                    raise ClusterError(_advice(error)) from error
                await pause(self._clock, min(RETRY, left))
                if not await within(self._clock, max(0.0, left - RETRY), self._up):
                    raise ClusterError(_advice(error)) from error

    async def call_once(self, method: str, *args: Any) -> Any:
        """The same, without waiting for a ledger that cannot be reached: `ClusterError` at once."""
        while True:
            shared, greetings = self._shared, self._greetings
            if shared is None:
                raise ClusterError(self.trouble.reason if self.trouble else _CONNECTING)
            try:
                return await self._answer(shared.call(method, self._member.id, *args))
            except UnknownFrontError:
                await self._greet(shared, greetings)
            except ServingError:
                raise
            except Exception as error:  # a fault of the ledger's
                logger.exception("%s of the cluster's ledger has failed", method)
                raise ServingError(f"what servers share has failed: {error}") from error

    def hurry(self) -> None:
        """Give the next sign of life now."""
        self._hurry.set()

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
                hello = shared.call("hello", self._member.id, self._member.hello())
                settings = await self._answer(hello)
                self._greetings += 1
                self._member.greeted(settings)

    async def _stay(self) -> None:
        """Be connected, and give a sign of life every two seconds."""
        while True:
            try:
                if self._shared is None or self._sharing or self._failures >= _SHARE_AGAIN:
                    self._shared = await self._ask_for_ledger()
                if self._member.lacks(await self._beaten()):
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
            await within(self._clock, wait, self._hurry)

    async def _ask_for_ledger(self) -> SharedObject:
        """The object of that name, asked for once at a time. Gives the ledger up meanwhile.

        Clusters may wait for their head for minutes, on a thread.
        """
        if self._sharing is None:
            self._failures = 0
            self._sharing = self.spawn(self._cluster.share(LEDGER, self._create))
        sharing, found = self._sharing, asyncio.Event()
        sharing.add_done_callback(lambda _: found.set())
        if not await within(self._clock, _ANSWER, found):
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
        beat = asyncio.ensure_future(self.call_once("beat", self._member.beat()))
        answered = asyncio.Event()
        beat.add_done_callback(lambda _: answered.set())
        try:
            if not await within(self._clock, _ANSWER, answered):
                self._give_up()
            return frozenset(beat.result())
        finally:
            beat.cancel()

    def _heard(self) -> None:
        if self.trouble:
            logger.info("the cluster's shared limits can be reached again")
        self._down_since, self.trouble, self._failures = None, None, 0
        self._up.set()
        for listener in self.when_heard:
            listener()

    def _failed(self, error: ServingError) -> float:
        """Since when the ledger cannot be reached."""
        if self._up.is_set():
            self._up.clear()
            self._hurry.set()
        self._failures += 1
        if self._down_since is None:
            self._down_since = self._clock.time()
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
