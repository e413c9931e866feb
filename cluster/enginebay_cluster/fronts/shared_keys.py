"""What keys use at several fronts, as one of them sees it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import date, datetime

from enginebay.chat.answer.account import Used
from enginebay.config.keys import Key
from enginebay.contract.errors import ServingError, encodable
from enginebay.server.usage.key_use import KeyUse, KeyUses
from enginebay.server.usage.records import Records, utc_now
from enginebay.server.usage.request_count import RequestsSeen
from enginebay.server.usage.usage_file import Slot
from enginebay_cluster.fronts.front import Front
from enginebay_cluster.fronts.said import Counted, Entered, Told

logger = logging.getLogger(__name__)

_PARTING = 2.0
"""Seconds that a server which ends waits for a ledger that cannot be reached."""


class SharedRecords(Records):
    """Hands what keys have used on to the ledger, and knows what the ledger has told last.

    What was handed on gets a number, and is handed on again by that number until the ledger has
    confirmed it. `seen` has the requests of a key, of all fronts.
    """

    def __init__(
        self,
        front: Front,
        *,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._front = front
        self._now = now
        self._one_at_a_time = asyncio.Lock()
        self._unhanded: dict[Slot, Used] = {}
        self._number = 0
        self._on_its_way: dict[Slot, Used] = {}
        self._known = ("", 0)
        self._today: dict[str, tuple[str, int]] = {}
        self._others: dict[str, int] = {}
        self._elsewhere: dict[str, int] = {}
        self._seen: dict[str, tuple[float, RequestsSeen]] = {}

    def now(self) -> datetime:
        return self._now()

    def add(self, key: str, model: str, used: Used) -> None:
        self._unhanded.setdefault(Slot(self.day, key, encodable(model)), Used()).add(used)

    def tokens_today(self, key: str) -> int:
        today = self.day
        day, told = self._today.get(key, ("", 0))
        tokens = told if day == today else 0
        for part in (self._unhanded, self._on_its_way):
            tokens += sum(used.tokens for slot, used in part.items() if slot[:2] == (today, key))
        return tokens

    def used_elsewhere(self, key: str) -> int:
        return self._elsewhere.get(key, 0)

    def requests_of(self, key: str) -> RequestsSeen:
        """The requests of a key as they were told last, at any front."""
        at, seen = self._seen.get(key, (0.0, RequestsSeen()))
        return seen.after(self._front.clock.time() - at)

    def see(self, key: str, seen: RequestsSeen) -> None:
        """The ledger has told how many requests of a key there are."""
        self._seen[key] = self._front.clock.time(), seen

    async def write(self) -> None:
        await asyncio.shield(asyncio.ensure_future(self._write()))

    async def usage(self, since: date, key: str | None) -> dict[Slot, Used]:
        await self._write(self._front.ledger.patience)
        found: dict[Slot, Used] = await self._front.ledger.call("usage", since, key)
        return found

    async def close(self) -> None:
        try:
            await self._write(_PARTING)
        except ServingError as error:
            logger.error("what keys have used here since is lost: %s", error.message)

    async def _write(self, patience: float = 0.0) -> None:
        """Hand on what there is; keep it if the ledger cannot be reached."""
        async with self._one_at_a_time:
            while True:
                if not self._on_its_way and self._unhanded:
                    self._on_its_way, self._unhanded = self._unhanded, {}
                    self._number += 1
                number = self._number if self._on_its_way else 0
                try:
                    told = await self._front.ledger.call(
                        "hand_over", number, self._on_its_way, self._known, patience=patience
                    )
                except ServingError:
                    if patience:
                        raise
                    return  # which the front says in the log
                self._on_its_way = {}
                self._learn(told)
                if not self._unhanded:
                    return

    def _learn(self, told: Told) -> None:
        same = told.ledger == self._known[0]
        if not same:
            self._others.clear()
        self._known = told.ledger, told.version
        self.trouble = told.trouble
        for key, totals in told.keys.items():
            before = self._others.get(key)
            new = min(totals.elsewhere, totals.minute)  # what is older counts for no minute
            if before is not None:
                new = totals.elsewhere - before
            self._others[key] = totals.elsewhere
            self._elsewhere[key] = self._elsewhere.get(key, 0) + max(0, new)
            self._today[key] = told.day, totals.today
            self.see(key, totals.seen)


class SharedKeyUse(KeyUse):
    """What one key uses: its requests are counted by the ledger, if it has limits of them.

    Tokens are those that are used here, and those of others as they were told last.
    """

    def __init__(
        self, name: str, records: SharedRecords, clock: Callable[[], float], front: Front
    ) -> None:
        super().__init__(name, records, clock)
        self._told = records
        self._front = front

    @asynccontextmanager
    async def counted(self, key: Key) -> AsyncIterator[None]:
        if key.requests_per_minute is None and key.concurrent_requests is None:
            async with super().counted(key):
                yield
            return
        ticket = self._front.ticket(Counted(key.name))
        try:
            limits = Key(
                key.name,
                b"",
                requests_per_minute=key.requests_per_minute,
                concurrent_requests=key.concurrent_requests,
            )
            entered: Entered = await self._front.ledger.call("enter", ticket.number, limits)
            self._told.see(key.name, entered.seen)
            if entered.refused:
                raise entered.refused
            ticket.runs = True
            yield
        finally:
            self._front.give_back(ticket)

    @property
    def seen(self) -> RequestsSeen:
        return self._told.requests_of(self._name)


class SharedKeyUses(KeyUses):
    """The use of every key, of all fronts together as far as its limits are concerned."""

    def __init__(
        self, front: Front, records: SharedRecords, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(records, clock)
        self._front = front
        self._handed_on = records

    def _make(self, name: str) -> KeyUse:
        return SharedKeyUse(name, self._handed_on, self._clock, self._front)
