"""What keys have used of all fronts together, in the ledger."""

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

from enginebay.chat.answer.account import Used
from enginebay.config.keys import Key
from enginebay.contract.errors import RateLimitError
from enginebay.models.loading.clock import Clock
from enginebay.server.usage.request_count import RequestCount
from enginebay.server.usage.token_window import TokenWindow
from enginebay.server.usage.usage_file import Slot, Usage
from enginebay.server.usage.usage_records import UsageRecords
from enginebay_cluster.fronts.said import Entered, KeyTotals, Told


class UsageSum:
    """Counts requests, and sums what fronts hand on, in the file of usage.

    `ledger`: the id that fronts know it by. What was handed on is written before that is confirmed,
    together with its number, so that what is handed on once more, be it to the next ledger with the
    same file, does not count again.
    """

    def __init__(
        self, ledger: str, path: Path | None, clock: Clock, now: Callable[[], datetime]
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._records = UsageRecords(path, now=now)
        self._counts: dict[str, RequestCount] = {}
        self._handed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._totals: Counter[str] = Counter()
        self._windows: defaultdict[str, TokenWindow] = defaultdict(TokenWindow)
        self._version = 0
        self._changed: dict[str, int] = {}
        self._opened = False

    def count_of(self, key: str) -> RequestCount:
        """The requests of the key of this name."""
        if key not in self._counts:
            self._counts[key] = RequestCount(self._clock.time)
        return self._counts[key]

    def enter(self, key: Key) -> Entered:
        """Count a request, if the limits of its key allow it."""
        count, refused = self.count_of(key.name), None
        try:
            count.begin(key)
        except RateLimitError as error:
            refused = error
        self.note(key.name)
        return Entered(refused, count.seen)

    def note(self, key: str) -> None:
        """Tell fronts what there is of this key when they ask next."""
        self._version += 1
        self._changed[key] = self._version

    async def hand_over(
        self, front: str, number: int, usage: Usage, known: tuple[str, int]
    ) -> Told:
        """Add what a front has counted, its n-th such message, unless that was added before.

        `known`: the ledger and version of what the front was told last.
        """
        await self._open()
        if self._records.take(front, number, usage):
            for slot, used in usage.items():
                self._handed[front][slot.key] += used.tokens
                self._totals[slot.key] += used.tokens
                self.note(slot.key)
        if number:
            await self._records.write()
        ledger, version = known
        since = version if ledger == self._ledger else 0
        changed = [key for key, at in self._changed.items() if at > since]
        return Told(
            ledger=self._ledger,
            version=self._version,
            day=self._records.day,
            keys={key: self._totals_of(front, key) for key in changed},
            trouble=self._records.trouble,
        )

    async def usage(self, since: date, key: str | None) -> dict[Slot, Used]:
        """What was handed on, from this day on, of one key or all."""
        return await self._records.usage(since, key)

    async def close(self) -> None:
        """Write what there is."""
        await self._records.close()

    async def _open(self) -> None:
        """Read what was there before: numbers that were handed on, and what was used today."""
        if not self._opened:
            await self._records.write()
            self._opened = True
            for key in self._records.keys_today:
                self.note(key)

    def _totals_of(self, front: str, key: str) -> KeyTotals:
        window = self._windows[key]
        window.sample(self._clock.time(), self._totals[key])
        return KeyTotals(
            elsewhere=self._totals[key] - self._handed[front][key],
            minute=window.used,
            today=self._records.tokens_today(key),
            seen=self.count_of(key).seen,
        )
