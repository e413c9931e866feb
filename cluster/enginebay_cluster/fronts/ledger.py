"""What fronts share, in one place: the object that a cluster has once."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from enginebay.chat.answer.account import Used
from enginebay.config.keys import Key
from enginebay.contract.errors import RequestCancelledError, ServingError
from enginebay.models.admission_queue import Gate, GateSize
from enginebay.models.loading.clock import Clock, LoopClock
from enginebay.server.peers import Answers
from enginebay.server.usage.records import utc_now
from enginebay.server.usage.usage_file import Slot, Usage
from enginebay_cluster.fronts.kept_settings import KeptSettings
from enginebay_cluster.fronts.members import HeldCount, HeldPlace, Member, Members
from enginebay_cluster.fronts.post_office import PostOffice
from enginebay_cluster.fronts.said import (
    Beat,
    Counted,
    Entered,
    Hello,
    Holding,
    Order,
    Settings,
    Told,
    Turn,
    UnknownFrontError,
)
from enginebay_cluster.fronts.timing import BEAT, SETTLE
from enginebay_cluster.fronts.usage_sum import UsageSum

if TYPE_CHECKING:
    from enginebay_responses.settings import ResponsesSettings
    from enginebay_responses.store.store import ResponseStore, StoredResponse

logger = logging.getLogger(__name__)

_OTHERS = 2.0
"""Seconds that fronts get to hand on answers that they are about to store."""


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """Where a ledger keeps what outlives it: absolute paths on the machine that it runs on.

    `usage`: the file of usage, None for memory. `store`: the section `responses`,
    None if that API is not installed.
    """

    usage: str | None
    store: "ResponsesSettings | None"


class Ledger:
    """The limits of keys, the queues of engines and all else that fronts have in common.

    Its coroutines are called by fronts, whose id is the first argument of each. Any of them may be
    called again when its answer was lost: nothing is counted or let in twice. A front that is not
    known, or has been silent for 10 seconds, gets an `UnknownFrontError` and has to say `hello`.

    In its first second it lets in and counts nothing: when another ledger was lost, fronts say what
    runs with them. Everything happens on one event loop.
    """

    def __init__(
        self,
        files: LedgerFiles,
        clock: Clock | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.id = uuid4().hex
        self._clock = clock or LoopClock()
        self._members = Members(self._clock)
        self._gates: dict[str, Gate] = {}
        usage = Path(files.usage) if files.usage else None
        self._usage = UsageSum(self.id, usage, self._clock, now)
        self._post = PostOffice(self._clock)
        self._settings = KeptSettings()
        self._store = _open_store(files.store)
        self._settled = asyncio.Event()
        self._settling = self._clock.call_later(SETTLE, self._settled.set)
        self._reaping = self._clock.call_later(BEAT, self._reap)

    async def hello(self, front: str, hello: Hello) -> Settings:
        """A front says who it is and what it holds; it is told what was set by others."""
        member = self._members.greet(front, hello.name)
        for engine, size in hello.gates.items():
            if engine not in self._gates:
                self._resize(engine, size)
        member.beats(hello.beat)
        for ticket, holding in hello.runs.items():
            if ticket not in member.held:
                member.held[ticket] = self._taken_over(holding)
        if newer := self._settings.merge(hello.settings):
            for other in self._others(front):
                self._post.post(other.id, "settings", newer)
        return self._settings.all()

    async def beat(self, front: str, beat: Beat) -> list[int]:
        """A front is alive; returns tickets that it holds and that are not known here."""
        return self._members.hear(front).beats(beat)

    async def goodbye(self, front: str) -> None:
        """A front ends, and gives back all that it holds."""
        self._part(front)

    async def enter(self, front: str, ticket: int, key: Key) -> Entered:
        """Count a request until its ticket is given back, if the limits of its key allow it."""
        member = await self._heard_when_settled(front)
        if ticket in member.held or member.has_left(ticket):
            return Entered(None, self._usage.count_of(key.name).seen)
        entered = self._usage.enter(key)
        if entered.refused is None:
            member.held[ticket] = HeldCount(self._usage.count_of(key.name))
        return entered

    async def join(self, front: str, ticket: int, turn: Turn) -> ServingError | None:
        """Wait for a turn, which lasts until its ticket is given back; or why there is none."""
        member = await self._heard_when_settled(front)
        held = member.held.get(ticket)
        if held is None:
            if member.has_left(ticket):
                return RequestCancelledError("the request has left the queue")
            held = member.held[ticket] = HeldPlace(
                self._gate(turn.engine).join(
                    turn.choices,
                    model=turn.model,
                    key=turn.key,
                    priority=turn.priority,
                    goes_on=turn.goes_on,
                )
            )
        assert isinstance(held, HeldPlace)
        await asyncio.wait({held.place.admitted})
        error = held.place.admitted.exception()
        if error is None:
            return None
        assert isinstance(error, ServingError)
        if isinstance(error, UnknownFrontError):
            raise error
        if member.held.get(ticket) is held:
            del member.held[ticket]
        return error

    async def leave(self, front: str, tickets: Sequence[int]) -> None:
        """A front holds these no more; unknown ones are no error."""
        member = self._members.hear(front)
        for ticket in tickets:
            member.give_back(ticket)

    async def resize(self, front: str, engine: str, size: GateSize) -> None:
        """Let so many choices into an engine from now on, whoever has asked for another number."""
        self._members.hear(front)
        self._resize(engine, size)

    async def positions(self, front: str) -> Mapping[int, int]:
        """How many are ahead of a front's waiting requests, by ticket."""
        held = self._members.hear(front).held
        places = {each.place: at for at, each in held.items() if isinstance(each, HeldPlace)}
        return {
            places[place]: position
            for gate in self._gates.values()
            for position, place in enumerate(gate.order())
            if place in places
        }

    async def hand_over(
        self, front: str, number: int, usage: Usage, known: tuple[str, int]
    ) -> Told:
        """Add to what keys have used: see `UsageSum.hand_over`."""
        self._members.hear(front)
        return await self._usage.hand_over(front, number, usage, known)

    async def usage(self, front: str, since: date, key: str | None) -> dict[Slot, Used]:
        """What fronts have handed on, from this day on, of one key or all."""
        self._members.hear(front)
        return await self._usage.usage(since, key)

    async def orders(self, front: str, known: tuple[str, int]) -> tuple[str, list[Order]]:
        """What a front is to do for others, and the ledger's id. Waits until there is something.

        `known`: the ledger's id and the number of the last order that it has.
        """
        self._members.hear(front)
        ledger, after = known
        return self.id, await self._post.orders(front, after if ledger == self.id else 0)

    async def answer(self, front: str, number: int, value: Any) -> None:
        """What a front says to an order."""
        self._members.hear(front)
        self._post.answer(number, value)

    async def ask_others(self, front: str, kind: str, value: Any, limit: float) -> Answers:
        """Have all other fronts do something; what they have answered within `limit` seconds."""
        self._members.hear(front)
        return await self._post.ask(self._others(front), kind, value, limit)

    async def tell(self, front: str, settings: Settings, limit: float) -> Answers:
        """Keep what was set, and have all other fronts apply it."""
        self._members.hear(front)
        newer = self._settings.merge(settings)
        return await self._post.ask(self._others(front), "settings", newer, limit)

    async def put_responses(self, front: str, stored: "Sequence[StoredResponse]") -> None:
        """Keep answers; those that are kept already stay as they are."""
        self._members.hear(front)
        for each in stored:
            if self._store is None:
                return
            try:
                self._store.put(each)
            except ValueError as error:
                logger.debug("%s", error)

    async def response_chain(
        self, front: str, id: str, owner: str | None
    ) -> "list[StoredResponse] | None":
        """An answer and all that it follows: see `ResponseStore.chain`."""
        if found := self._store and await self._store.chain(id, owner):
            return found
        await self._responses_of_others(front)
        return await self._store.chain(id, owner) if self._store else None

    async def response(self, front: str, id: str, owner: str | None) -> "StoredResponse | None":
        """An answer by its id."""
        if found := self._store and await self._store.get(id, owner):
            return found
        await self._responses_of_others(front)
        return await self._store.get(id, owner) if self._store else None

    async def response_items(
        self, front: str, ids: Iterable[str], owner: str | None
    ) -> dict[str, dict[str, Any]]:
        """Items of answers by their ids."""
        if self._store is None:
            return {}
        wanted = list(ids)
        found = await self._store.items(wanted, owner)
        if len(found) < len(set(wanted)):
            await self._responses_of_others(front)
            found = await self._store.items(wanted, owner)
        return found

    async def delete_response(self, front: str, id: str, owner: str | None) -> bool:
        """Delete an answer; whether there was one."""
        if self._store is None:
            return False
        if await self._store.delete(id, owner):
            return True
        await self._responses_of_others(front)
        return await self._store.delete(id, owner)

    async def close(self) -> None:
        """Write what there is; nothing can be asked of it afterwards."""
        self._settling.cancel()
        self._reaping.cancel()
        await self._usage.close()
        if self._store:
            await self._store.close()

    async def _responses_of_others(self, front: str) -> None:
        """Have fronts hand on answers that have just been given, as their clients know these."""
        self._members.hear(front)
        await self._post.ask(self._others(front), "responses", None, _OTHERS)

    async def _heard_when_settled(self, front: str) -> Member:
        self._members.hear(front)
        await self._settled.wait()
        return self._members.hear(front)

    def _gate(self, engine: str) -> Gate:
        gate = self._gates.get(engine)
        if gate is None:
            raise UnknownFrontError(f"the size of the gate of {engine} is not known here")
        return gate

    def _resize(self, engine: str, size: GateSize) -> None:
        if gate := self._gates.get(engine):
            gate.resize(size)
        else:
            self._gates[engine] = Gate(size, clock=self._clock.time)

    def _taken_over(self, holding: Holding) -> HeldPlace | HeldCount:
        if isinstance(holding, Counted):
            count = self._usage.count_of(holding.key)
            count.go_on()
            self._usage.note(holding.key)
            return HeldCount(count)
        return HeldPlace(
            self._gate(holding.engine).readmit(
                holding.choices,
                model=holding.model,
                key=holding.key,
                priority=holding.priority,
                goes_on=holding.goes_on,
            )
        )

    def _others(self, front: str) -> list[Member]:
        return [member for member in self._members if member.id != front]

    def _part(self, front: str) -> None:
        self._members.part(front)
        self._post.close_box(front)

    def _reap(self) -> None:
        for member in self._members.silent():
            logger.warning("the server %s is silent, its requests count no more", member.name)
            self._part(member.id)
        self._reaping = self._clock.call_later(BEAT, self._reap)


def _open_store(settings: "ResponsesSettings | None") -> "ResponseStore | None":
    if settings is None:
        return None
    from enginebay_responses.store.open_store import open_store

    return open_store(settings, Path())
