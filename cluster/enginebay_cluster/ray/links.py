"""A server's ends of the links: one to each replica, for all requests that run there."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from grpc import RpcError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from enginebay import Delta, DeltaStream, EngineDeadError, ServingError
from enginebay_cluster.ray.fleets import Fleet
from enginebay_cluster.ray.messages import Deltas, Hello, Report, unpack

logger = logging.getLogger(__name__)

LOST: tuple[type[Exception], ...] = (RayError, RayServeException, RpcError)
"""What a call to a replica raises when that is lost."""

_SILENCES = 3
"""Heartbeats without a message after which a replica is given up."""

_AGAIN = 1.0
"""Seconds until a link that broke is opened again."""


@dataclass(eq=False, slots=True)
class Call:
    """A request at a replica. `said`: whether anything of its answer has arrived; `ended`: whether
    its reader has all of it, or has left.
    """

    number: int
    request_id: str
    stream: DeltaStream
    replica: str
    said: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, items: list[Delta | ServingError]) -> None:
        """It has gained this."""
        last = len(items) - 1
        for position, item in enumerate(items):
            self.said = self.said or isinstance(item, Delta)
            self.stream.put(item, more=position < last)

    def fail(self, reason: str) -> None:
        """Its replica is lost."""
        self.stream.put(EngineDeadError(reason))


@dataclass(eq=False, slots=True)
class Link:
    """What is known of a replica. `ready`: it can be given requests by this server.

    `calls` are the requests that run there, by number, `asked` what else awaits its answer.
    """

    replica: str
    hello: Hello | None = None
    report: Report = field(default_factory=Report)
    ready: bool = False
    calls: dict[int, Call] = field(default_factory=dict)
    asked: set[asyncio.Future[Any]] = field(default_factory=set)

    def break_off(self, error: ServingError) -> None:
        """Nothing more comes of this replica."""
        for call in self.calls.values():
            call.stream.put(error)
        for answer in self.asked:
            if not answer.done():
                answer.set_exception(error)

    @property
    def unavailable(self) -> str | None:
        """Why its engine cannot answer for now; None if it can."""
        return self.report.unavailable


class Links:
    """Opened when a replica comes, closed when it is gone and nothing runs there any more.

    `server` names this end of them. `changed` is called when replicas have become ready or are so
    no more, `lost` with one that is gone for good.
    Lives on the event loop; the fleet changes on other threads.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        fleet: Fleet,
        heartbeat: float,
        changed: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self.server = uuid4().hex[:12]
        self._handle = handle.options(method_name="link", stream=True)
        self._fleet = fleet
        self._silence = _SILENCES * heartbeat
        self._changed = changed
        self._lost = lost
        self._numbers = itertools.count()
        self._links: dict[str, Link] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()

    def begin(self, prepare: Callable[[str], Awaitable[None]]) -> None:
        """Open them. `prepare` is awaited for a replica before it is `ready`, and may fail."""
        self._prepare = prepare
        self._fleet.listen(self._fleet_changed)
        self._follow()

    def all(self) -> list[Link]:
        """Those that there are, ready or not."""
        return list(self._links.values())

    def open(self, replica: str, request_id: str, stream: DeltaStream) -> Call:
        """A request is about to be sent to a replica; `stream` is to get what it gains."""
        link = self._find(replica)
        call = Call(next(self._numbers), request_id, stream, replica)
        link.calls[call.number] = call
        return call

    async def answer(self, replica: str, response: Any) -> Any:
        """The answer of a call to a replica. `EngineDeadError` if the replica is lost before."""
        link, lost = self._find(replica), self._loop.create_future()
        link.asked.add(lost)
        answer = asyncio.ensure_future(_awaited(response))
        answer.add_done_callback(_retrieve)  # of one that fails after nobody waits for it
        try:
            await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
            return (answer if answer.done() else lost).result()
        finally:
            link.asked.discard(lost)
            lost.cancel()
            if not answer.done():
                answer.cancel()
                cancel(response)

    def _find(self, replica: str) -> Link:
        link = self._links.get(replica)
        if link is None:
            raise EngineDeadError("the engine that was to answer is gone")
        return link

    def close(self, call: Call) -> None:
        """A request has ended."""
        call.ended.set()
        if link := self._links.get(call.replica):
            link.calls.pop(call.number, None)
        self._follow()

    async def end(self, error: ServingError) -> None:
        """Close all of them; the requests that run get this error."""
        self._fleet.ignore(self._fleet_changed)
        for link in self._links.values():
            link.break_off(error)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fleet_changed(self) -> None:
        self._loop.call_soon_threadsafe(self._follow)

    def _follow(self) -> None:
        """Have a link to each replica that there is, or at which something still runs."""
        there = self._fleet.replicas
        for replica in there - self._tasks.keys():
            self._links[replica] = Link(replica)
            self._tasks[replica] = asyncio.create_task(self._keep(replica))
        for replica in self._tasks.keys() - there:
            link = self._links[replica]
            self._set_ready(link, False)
            if not link.calls:
                link.break_off(EngineDeadError("the engine that was asked is gone"))
                self._tasks.pop(replica).cancel()
                del self._links[replica]
                self._lost(replica)

    def _set_ready(self, link: Link, ready: bool) -> None:
        if link.ready != ready:
            link.ready = ready
            self._changed()

    async def _keep(self, replica: str) -> None:
        """Read what a replica says, again and again when that breaks off, until cancelled."""
        link = self._links[replica]
        while True:
            response = self._handle.remote(self.server, replica=replica)
            try:
                await self._read(link, response)
            except Exception as error:
                if link.ready:
                    logger.warning("the link to replica %s broke: %s", replica, first_line(error))
                self._set_ready(link, False)
                silent = isinstance(error, TimeoutError)
                why = f" (no sign of life for {self._silence:g} s)" if silent else ""
                link.break_off(EngineDeadError(f"the engine that answered is gone{why}"))
            finally:
                cancel(response)
            await asyncio.sleep(_AGAIN)

    async def _read(self, link: Link, response: Any) -> None:
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    data = await anext(response)
            except StopAsyncIteration:
                raise EngineDeadError("it has ended") from None
            if not data:
                continue
            match unpack(data):
                case Hello() as hello:
                    link.hello = hello
                    await self._prepare(link.replica)
                    self._set_ready(link, link.replica in self._fleet.replicas)
                case Report() as report:
                    was, link.report = link.unavailable, report
                    if was != report.unavailable:
                        self._changed()
                case deltas:
                    self._deliver(link, deltas)

    def _deliver(self, link: Link, deltas: Deltas) -> None:
        for number, items in deltas:
            if call := link.calls.get(number):
                call.put(list(items))


async def _awaited(response: Any) -> Any:
    return await response


def _retrieve(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


def cancel(response: Any) -> None:
    """Nothing else cancels: neither dropping a response nor the end of the task that reads it."""
    try:
        response.cancel()
    except Exception as error:  # it was refused, or has failed
        logger.debug("nothing to cancel: %s", error)


def first_line(error: BaseException) -> str:
    """The first line of what an error says, which of Ray's goes on for a page."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
