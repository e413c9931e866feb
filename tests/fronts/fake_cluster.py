"""A cluster in this process: its shared objects are lost, cut off and slow as a test says."""

import asyncio
import pickle
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from enginebay import Backend, hookimpl
from enginebay.contract.backend_settings import ReportBatchSize, ReportProgress
from enginebay.contract.errors import ServingError
from enginebay_cluster.contract import (
    Cluster,
    ClusterError,
    ClusterSettings,
    ClusterStatus,
    EngineSpec,
    NodeCommand,
    NodeSettings,
    Placement,
    SharedObject,
)
from enginebay_cluster.fronts.timing import SETTLE
from tests.clock import FakeClock as FakeClock

Hook = Callable[[str, str], Awaitable[None]]
"""`hook(front, method)`, on the loop of the objects; may wait, and raise `ClusterError`."""


class _Object:
    """A shared object, until it is lost."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.lost = asyncio.Event()


class FakeShared(SharedObject):
    """Calls an object of a `FakeCluster`, with pickled arguments and results."""

    def __init__(self, cluster: "FakeCluster", name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def call(self, method: str, *args: Any) -> Any:
        sent = pickle.dumps(args)
        run = self._cluster.run(self._name, method, sent)
        if asyncio.get_running_loop() is self._cluster.home:
            done: Any = asyncio.ensure_future(run)
        else:
            done = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run, self._cluster.home))
        received, error = pickle.loads(await asyncio.shield(done))
        if error:
            raise error
        return received


class FakeCluster(Cluster):
    """Objects that live on one event loop, that of `home`, and are called from any.

    `before` and `after` are awaited before a call arrives and before its answer goes back; what
    they raise is what the caller gets. `cut_off` are fronts that reach nothing, `down` cuts off
    all. `clock` is that of the objects, if it is not the loop's; they are settled when they are
    made, unless `settles` is false. `when_lost` has an object forget what dies with its process,
    before its files are closed. `make_backend` makes a model's engines; `bugs` are errors
    that no object should have raised. `calls` counts by method.
    """

    def __init__(
        self,
        home: asyncio.AbstractEventLoop,
        *,
        clock: FakeClock | None = None,
        settles: bool = True,
        make_backend: Callable[[EngineSpec], Backend] | None = None,
        when_lost: Callable[[Any], object] = lambda made: None,
    ) -> None:
        self.home = home
        self.clock = clock
        self.settles = settles
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.cut_off: set[str] = set()
        self.down = False
        self.bugs: list[BaseException] = []
        self.calls: list[str] = []
        self._make_backend = make_backend
        self._when_lost = when_lost
        self._creates: dict[str, Callable[..., Any]] = {}
        self._objects: dict[str, _Object] = {}
        self._closing: set[asyncio.Future[None]] = set()

    @hookimpl
    def make_cluster(self, settings: ClusterSettings) -> Cluster:
        return self

    def object(self, name: str = "ledger") -> Any:
        """The object of that name, as it is now; to be looked at on its loop."""
        return self._objects[name].made

    def lose(self, name: str = "ledger") -> None:
        """The process of an object has died, and another one begins with nothing."""
        lost = self._objects[name]
        self._objects[name] = self._made(self._creates[name])
        lost.lost.set()
        self._when_lost(lost.made)
        self._closing.add(asyncio.ensure_future(lost.made.close()))

    async def end(self) -> None:
        """Close all objects. Raises what an object should not have raised."""
        for each in self._objects.values():
            each.lost.set()
            await each.made.close()
        await asyncio.gather(*self._closing)
        if self.bugs:
            raise AssertionError("an object has raised an error") from self.bugs[0]

    async def run(self, name: str, method: str, sent: bytes) -> bytes:
        """Call a method; its result and error, pickled."""
        try:
            return pickle.dumps((await self._run(name, method, sent), None))
        except ServingError as error:
            return pickle.dumps((None, error))

    async def _run(self, name: str, method: str, sent: bytes) -> Any:
        args = pickle.loads(sent)
        front = args[0]
        self._require(front)
        if self.before:
            await self.before(front, method)
        each = self._objects[name]
        self.calls.append(method)
        work = asyncio.ensure_future(getattr(each.made, method)(*args))
        lost = asyncio.ensure_future(each.lost.wait())
        await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if each.lost.is_set():
            work.cancel()
            raise ClusterError("the shared object was lost")
        try:
            result = work.result()
        except ServingError:
            raise
        except Exception as error:
            self.bugs.append(error)
            raise
        if self.after:
            await self.after(front, method)
        self._require(front)
        return result

    def _require(self, front: str) -> None:
        if self.down or front in self.cut_off:
            raise ClusterError("nothing of the cluster can be reached; start its head")

    def _made(self, create: Callable[..., Any]) -> _Object:
        made = _Object(create(clock=self.clock, now=self.clock.utc) if self.clock else create())
        if self.clock and self.settles:
            self.clock.advance(SETTLE)
        return made

    def missing(self) -> str | None:
        return None

    async def connect(self) -> None:
        pass

    def backend(
        self,
        engine: EngineSpec,
        placement: Placement,
        *,
        report_progress: ReportProgress,
        report_batch_size: ReportBatchSize,
    ) -> Backend:
        assert self._make_backend
        return self._make_backend(engine)

    async def share(self, name: str, create: Callable[[], Any]) -> SharedObject:
        if self.down:
            raise ClusterError("nothing of the cluster can be reached; start its head")
        if asyncio.get_running_loop() is self.home:
            self._share(name, create)
        else:
            done = asyncio.run_coroutine_threadsafe(self._shared(name, create), self.home)
            await asyncio.wrap_future(done)
        return FakeShared(self, name)

    async def _shared(self, name: str, create: Callable[[], Any]) -> None:
        self._share(name, create)

    def _share(self, name: str, create: Callable[[], Any]) -> None:
        self._creates.setdefault(name, pickle.loads(pickle.dumps(create)))
        if name not in self._objects:
            self._objects[name] = self._made(self._creates[name])

    async def status(self) -> ClusterStatus:
        return ClusterStatus(nodes=[], models=[], engines=[])

    async def remove(self, model: str | None = None) -> Sequence[str]:
        return []

    async def close(self) -> None:
        pass

    def node_command(self, node: NodeSettings) -> NodeCommand:
        raise ClusterError("no node can be started here")


class ThreadedCluster:
    """A `FakeCluster` with a loop of its own, for servers in other threads."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine where the objects are."""

        return asyncio.run_coroutine_threadsafe(work, self.cluster.home).result(60)

    def do(self, what: Callable[[], Any]) -> Any:
        """Call something where the objects are."""

        async def done() -> Any:
            return what()

        return self.run(done())

    def until(self, condition: Callable[[], object]) -> None:
        """Return when it holds, looked at where the objects are."""

        async def wait() -> None:
            while not condition():  # noqa: ASYNC110  (nobody tells of every state)
                await asyncio.sleep(0)

        self.run(wait())


@contextmanager
def cluster_in_thread(
    make_backend: Callable[[EngineSpec], Backend], clock: FakeClock | None = None
) -> Iterator[ThreadedCluster]:
    """A cluster in a thread of its own until the block ends; servers in it have to end before."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cluster")
    thread.start()
    cluster = FakeCluster(loop, clock=clock or FakeClock(), make_backend=make_backend)
    threaded = ThreadedCluster(cluster)
    try:
        yield threaded
        threaded.run(cluster.end())
    finally:
        threaded.run(_cancel_all())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
