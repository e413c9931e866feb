"""A store of answers in this process: which are kept is decided here, how by its subclasses."""

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from enginebay_responses.store.retention import Changes, Limits, Record, Retention
from enginebay_responses.store.store import ResponseStore, StoredResponse

logger = logging.getLogger(__name__)

Content = tuple[dict[str, Any], list[dict[str, Any]]]
"""The answer and its input, of a `StoredResponse`."""


class KeptResponses(ResponseStore):
    """A store in this process. The least recently used answers go first."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.time) -> None:
        self._kept = Retention(limits)
        self._clock = clock

    def put(self, stored: StoredResponse) -> None:
        now = self._begin()
        body = _packed(stored)
        record = Record(
            id=stored.id,
            owner=stored.owner,
            parent=stored.parent,
            items=tuple(dict.fromkeys(item["id"] for item in _items(stored))),
            size=len(body),
            used=now,
        )
        if refusal := self._kept.refusal(record):
            logger.warning("the answer %s cannot be kept: %s", stored.id, refusal)
            return
        self._kept.add(record)
        self._kept.fit(now)
        self._write((record, body), self._kept.changes())

    async def get(self, id: str, owner: str | None) -> StoredResponse | None:
        self._begin()
        record = self._kept.find(id, owner)
        found = record and await self._use([record], [record])
        return found[0] if found else None

    async def chain(self, id: str, owner: str | None) -> list[StoredResponse] | None:
        self._begin()
        record = self._kept.find(id, owner)
        return await self._use([record], self._kept.chain(record)) if record else None

    async def items(self, ids: Iterable[str], owner: str | None) -> dict[str, dict[str, Any]]:
        self._begin()
        records = {id: self._kept.find_item(id, owner) for id in ids}
        holding = [record for record in dict.fromkeys(records.values()) if record]
        found: dict[str, dict[str, Any]] = {}
        for stored in await self._use(holding, holding) or ():
            for item in reversed(_items(stored)):  # of those with one id it is the first
                record = records.get(item["id"])
                if record and record.id == stored.id:
                    found[item["id"]] = item
        return found

    async def delete(self, id: str, owner: str | None) -> bool:
        self._begin()
        record = self._kept.find(id, owner)
        if record is None:
            return False
        self._kept.hide(record)
        self._write(None, self._kept.changes())
        await self._written()
        return True

    @abstractmethod
    def _write(self, added: tuple[Record, bytes] | None, changes: Changes) -> None:
        """Begin to write an answer, and then what has changed; what is read later knows it."""

    @abstractmethod
    async def _written(self) -> None:
        """Wait until all is written."""

    @abstractmethod
    async def _read(self, ids: Sequence[str]) -> list[Content] | None:
        """What was written; None if one of these answers cannot be read."""

    def _begin(self) -> float:
        """The time; what is too old by now is not kept any more."""
        now = self._clock()
        self._kept.fit(now)
        if changes := self._kept.changes():
            self._write(None, changes)
        return now

    async def _use(
        self, used: Sequence[Record], records: Sequence[Record]
    ) -> list[StoredResponse] | None:
        """The answers of `records`, noting which of them are used."""
        now = self._clock()
        for record in used:
            self._kept.use(record, now)
        self._write(None, self._kept.changes())
        contents = await self._read([each.id for each in records])
        if contents is None:
            return None
        return [
            StoredResponse(
                id=each.id, owner=each.owner, parent=each.parent, response=response, input=input
            )
            for each, (response, input) in zip(records, contents, strict=True)
        ]


def _items(stored: StoredResponse) -> list[dict[str, Any]]:
    """All that has an id, the answer's first."""
    output = stored.response.get("output", [])
    return [item for item in (*output, *stored.input) if isinstance(item.get("id"), str)]


def _packed(stored: StoredResponse) -> bytes:
    content = {"response": stored.response, "input": stored.input}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")  # half a character, as models and clients have them


def unpacked(bodies: Iterable[bytes]) -> list[Content]:
    """What is in the bodies that a store has written; on a thread, as they may be large."""
    contents = map(json.loads, bodies)
    return [(content["response"], content["input"]) for content in contents]
