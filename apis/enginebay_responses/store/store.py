"""What keeps answers of `/v1/responses`, so that later requests can go on from them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


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

    @abstractmethod
    def put(self, stored: StoredResponse) -> None:
        """Keep an answer, which can be had at once.

        One that cannot be kept is said in the log: its chain is larger than the limit by itself, or
        its parent has gone meanwhile. It is like one that was evicted.
        """

    @abstractmethod
    async def get(self, id: str, owner: str | None) -> StoredResponse | None:
        """The answer with this id; None if this owner has none."""

    @abstractmethod
    async def chain(self, id: str, owner: str | None) -> list[StoredResponse] | None:
        """The answer with this id and all that it follows, oldest first; None if it is unknown."""

    @abstractmethod
    async def items(self, ids: Iterable[str], owner: str | None) -> dict[str, dict[str, Any]]:
        """Items of inputs and answers by their ids: those of them that this owner has."""

    @abstractmethod
    async def delete(self, id: str, owner: str | None) -> bool:
        """Delete an answer for good; whether there was one."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is being written; nothing else can be asked of the store afterwards."""
