"""Fronts and their ledger on one event loop, by a clock that a test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from enginebay.contract.errors import ServingError
from enginebay.models.admission_queue import GateSize, Place
from enginebay_cluster.fronts.front import Front
from enginebay_cluster.fronts.ledger import Ledger, LedgerFiles
from enginebay_cluster.fronts.shared_gate import SharedGate
from enginebay_cluster.fronts.shared_keys import SharedKeyUses, SharedRecords
from enginebay_responses.settings import ResponsesSettings
from tests.fronts.fake_cluster import FakeClock, FakeCluster


class FrontAt:
    """A front, and what it uses of the ledger."""

    def __init__(self, site: "Site", name: str) -> None:
        self.site = site
        self.front = Front(site.cluster, name, site.create, clock=site.clock, now=site.clock.utc)
        self.records = SharedRecords(self.front, now=site.clock.utc)
        self.uses = SharedKeyUses(self.front, self.records, site.clock.time)
        self.front.start()

    def gate(
        self, room: int | None = 2, max_queue: int = 100, engine: str = "chat", **kwargs: Any
    ) -> SharedGate:
        size = GateSize(room, max_queue)
        return SharedGate(self.front, engine, size, 0.0, clock=self.site.clock.time, **kwargs)

    async def end(self) -> None:
        await self.front.close()

    def die(self) -> None:
        """Its machine is gone: nobody hears of it any more."""
        self.site.cluster.cut_off.add(self.front.id)


class Site:
    """A cluster with a ledger and fronts."""

    def __init__(self, usage: Path | None = None, store: str = "memory") -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(
            asyncio.get_running_loop(), clock=self.clock, when_lost=_forget_unwritten
        )
        files = LedgerFiles(str(usage) if usage else None, ResponsesSettings(store=store))
        self.create = partial(Ledger, files)
        self.fronts: list[FrontAt] = []

    async def front(self, name: str = "front") -> FrontAt:
        """One more front, which is connected."""
        self.fronts.append(FrontAt(self, name))
        await quiet()
        return self.fronts[-1]

    @property
    def ledger(self) -> Ledger:
        ledger: Ledger = self.cluster.object()
        return ledger

    async def lose_ledger(self) -> None:
        """It is lost, and a new one is known to all fronts."""
        self.cluster.lose()
        await self.passes(1)

    async def passes(self, seconds: float) -> None:
        """Time goes by, in small steps."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            await quiet()


@asynccontextmanager
async def site(**kwargs: Any) -> AsyncIterator[Site]:
    """A cluster until the block ends; nothing in it may have raised what it should not."""
    made = Site(**kwargs)
    try:
        yield made
    finally:
        for front in made.fronts:
            await front.end()
        await made.cluster.end()


def _forget_unwritten(ledger: Ledger) -> None:
    records = ledger._usage._records
    if records._path:
        records._unwritten.clear()


async def quiet() -> None:
    """Return when nothing is left to do but to wait."""
    ready: Any = asyncio.get_running_loop()
    while ready._ready:  # noqa: ASYNC110  (nobody tells of that)
        await asyncio.sleep(0)


def outcome(place: Place) -> str:
    """What has become of a place: its state, or the code of the error."""
    if place.waits:
        return "waits"
    error = None if place.admitted.cancelled() else place.admitted.exception()
    return str(error.code) if isinstance(error, ServingError) else "runs"
