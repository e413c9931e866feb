"""Which answers are kept: the rules of every store, which know the answers' sizes only."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many answers can be found, how many bytes all take, and when unused ones are too old."""

    entries: int
    bytes: int
    seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class Record:
    """What is known of a kept answer.

    `items`: ids of those that can be found by id. `used`: when it was used last, in seconds since
    1970. `hidden`: it was deleted or evicted, and is kept for the chains of its children.
    """

    id: str
    owner: str | None
    parent: str | None
    items: tuple[str, ...]
    size: int
    used: float
    hidden: bool = False
    children: int = 0
    chain_size: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What a store has to do, by ids: hide answers, remove them, note when they were used."""

    hidden: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.hidden or self.gone or self.used)


class Retention:
    """Records of answers, within limits. The least recently used answer goes first.

    Answers form chains. One that goes while it has children is hidden: it is found no more, but
    still counts, and goes for good with the last of its descendants.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: dict[str, Record] = {}
        self._findable: OrderedDict[str, Record] = OrderedDict()  # the least recently used first
        self._with_item: dict[tuple[str | None, str], dict[str, Record]] = {}
        self._bytes = 0
        self._changes = Changes()

    def refusal(self, record: Record) -> str | None:
        """Why an answer cannot be kept; None if it can."""
        if record.parent is None:
            chain_size = record.size
        else:
            parent = self._records.get(record.parent)
            if parent is None or parent.owner != record.owner:
                return "the answer that it follows is not kept any more"
            chain_size = parent.chain_size + record.size
        if chain_size > self._limits.bytes:
            return (
                f"it has {chain_size} bytes with those that it follows, and "
                f"responses.store_bytes is {self._limits.bytes}"
            )
        return None

    def add(self, record: Record) -> None:
        """Keep an answer that `refusal` says nothing against, with a new id."""
        if record.id in self._records:
            raise ValueError(f"there is an answer with the id {record.id} already")
        record.chain_size = record.size
        if record.parent is not None:
            parent = self._records[record.parent]
            parent.children += 1
            record.chain_size += parent.chain_size
        self._records[record.id] = record
        self._bytes += record.size
        if record.hidden:
            return
        self._findable[record.id] = record
        for item in record.items:
            self._with_item.setdefault((record.owner, item), {})[record.id] = record

    def restore(self, records: Iterable[Record]) -> None:
        """Take over what another run has kept: parents before their children.

        What cannot be kept any more is gone, as is what is there for children that are not.
        """
        for record in records:
            if self.refusal(record):
                self._changes.gone.append(record.id)
            else:
                self.add(record)
        self._findable = OrderedDict(sorted(self._findable.items(), key=lambda it: it[1].used))
        for record in [*self._records.values()][::-1]:
            if record.hidden:
                self._remove_unheld(record)

    def find(self, id: str, owner: str | None) -> Record | None:
        """The record of an answer, if it is this owner's."""
        record = self._findable.get(id)
        return record if record and record.owner == owner else None

    def find_item(self, item: str, owner: str | None) -> Record | None:
        """The record of this owner's last answer with an item of this id."""
        records = self._with_item.get((owner, item))
        return next(reversed(records.values())) if records else None

    def chain(self, record: Record) -> list[Record]:
        """The records of an answer and all that it follows, the oldest first."""
        return [*self._upwards(record)][::-1]

    def use(self, record: Record, now: float) -> None:
        """Note that an answer is used."""
        record.used = now
        self._findable.move_to_end(record.id)
        self._changes.used[record.id] = now

    def hide(self, record: Record) -> None:
        """Have an answer found no more; it is gone for good if nothing follows it."""
        del self._findable[record.id]
        for item in record.items:
            records = self._with_item.get((record.owner, item), {})
            records.pop(record.id, None)
            if not records:
                self._with_item.pop((record.owner, item), None)
        record.hidden = True
        if record.children:
            self._changes.hidden.append(record.id)
        else:
            self._remove_unheld(record)

    def fit(self, now: float) -> None:
        """Hide what is too old, and what is too much."""
        while self._findable:
            oldest = next(iter(self._findable.values()))
            if (
                oldest.used >= now - self._limits.seconds
                and len(self._findable) <= self._limits.entries
                and self._bytes <= self._limits.bytes
            ):
                return
            self.hide(oldest)

    def changes(self) -> Changes:
        """What has changed since this was asked last."""
        changes, self._changes = self._changes, Changes()
        return changes

    def _remove_unheld(self, record: Record) -> None:
        for each in self._upwards(record):
            if each.children or not each.hidden or each.id not in self._records:
                return
            del self._records[each.id]
            self._bytes -= each.size
            self._changes.gone.append(each.id)
            if each.parent is not None:
                self._records[each.parent].children -= 1

    def _upwards(self, record: Record) -> Iterator[Record]:
        yield record
        while record.parent is not None:
            record = self._records[record.parent]
            yield record
