"""What keeps usage by key, model and day, as those see it that count."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, date, datetime

from enginebay.chat.answer.account import Used
from enginebay.server.usage.usage_file import Slot


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps the file from being written, in words without paths, and since when."""

    since: datetime
    reason: str


def utc_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


class Records(ABC):
    """Usage by key, model and day; to be used on one event loop.

    `trouble`: why the file is not written for now.
    """

    trouble: Trouble | None = None

    @abstractmethod
    def now(self) -> datetime:
        """The time in UTC, whose days are meant."""

    @property
    def day(self) -> str:
        """Today, as in slots."""
        return self.now().date().isoformat()

    @abstractmethod
    def add(self, key: str, model: str, used: Used) -> None:
        """Count what a key has used of a model today."""

    @abstractmethod
    def tokens_today(self, key: str) -> int:
        """What a key has used today; what other servers have added, as of the last `write`."""

    def used_elsewhere(self, key: str) -> int:
        """The tokens that others have used with a key, for its limit of a minute: a count that
        only grows. What is in a file that servers share is not among them.
        """
        return 0

    @abstractmethod
    async def write(self) -> None:
        """Hand on what was added; it is finished even if this is cancelled."""

    @abstractmethod
    async def usage(self, since: date, key: str | None) -> dict[Slot, Used]:
        """All from this day on, of one key or all, sorted; what is not written yet, too."""

    @abstractmethod
    async def close(self) -> None:
        """Write what there is; nothing can be added afterwards."""
