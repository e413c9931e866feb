"""What keeps answers of `/v1/responses`, so that later requests can go on from them."""

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from core.apis.response_store.retention import Changes, Limits, Record, Retention

logger = logging.getLogger(__name__)

Content = tuple[dict[str, Any], list[dict[str, Any]]]
"""The answer and its input, of a `StoredResponse`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """An answer, and what it was an answer to.

    `id`: `resp_…`. `owner`: the name of the API key, None where none is needed. `response`: the
    answer object as it was sent. `input`: its own input items, each with an id; not those of the
    answers before it. `parent`: its `previous_response_id`.
    """

    id: str
    owner: str | None
    response: dict[str, Any]
    input: list[dict[str, Any]]
    parent: str | None


class ResponseStore(ABC):
    """Answers by their ids, within limits; to be used on the event loop.

    Nobody finds what another owner has made. An answer that was deleted, or evicted as the least
    recently used one, is not found, but the chains of its children still have it. `get`, `chain`
    and `items` use the answers that they find.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.time) -> None:
        self._kept = Retention(limits)
        self._clock = clock

    def put(self, stored: StoredResponse) -> None:
        """Keep an answer, which can be had at once.

        One that cannot be kept is said in the log: its chain is larger than the limit by itself, or
        its parent has gone meanwhile. It is like one that was evicted.
        """
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
        """The answer with this id; None if this owner has none."""
        self._begin()
        record = self._kept.find(id, owner)
        found = record and await self._use([record], [record])
        return found[0] if found else None

    async def chain(self, id: str, owner: str | None) -> list[StoredResponse] | None:
        """The answer with this id and all that it follows, oldest first; None if it is unknown."""
        self._begin()
        record = self._kept.find(id, owner)
        return await self._use([record], self._kept.chain(record)) if record else None

    async def items(self, ids: Iterable[str], owner: str | None) -> dict[str, dict[str, Any]]:
        """Items of inputs and answers by their ids: those of them that this owner has."""
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
        """Delete an answer for good; whether there was one."""
        self._begin()
        record = self._kept.find(id, owner)
        if record is None:
            return False
        self._kept.hide(record)
        self._write(None, self._kept.changes())
        await self._written()
        return True

    @abstractmethod
    async def close(self) -> None:
        """Finish what is being written; nothing else can be asked of the store afterwards."""

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
