"""Answers of `/v1/responses` that all fronts find."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from enginebay.contract.errors import ServingError
from enginebay_cluster.fronts.front import Front
from enginebay_responses.store.store import ResponseStore, StoredResponse

logger = logging.getLogger(__name__)

_MOST_WAITING = 1000
"""Answers that are kept here, at most, while the ledger cannot be reached."""


class SharedResponses(ResponseStore):
    """The store that the ledger has.

    An answer is handed on as soon as it is put. Whoever does not find one has all fronts hand on
    what they have, and looks again: so it is found at any front as soon as its client knows it. The
    other methods raise `ClusterError` when the ledger cannot be reached.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._waiting: list[StoredResponse] = []
        self._one_at_a_time = asyncio.Lock()
        front.handlers["responses"] = self._hand_on_for_others
        front.ledger.when_heard.append(self._hand_on_soon)

    def put(self, stored: StoredResponse) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            lost = self._waiting.pop(0)
            logger.warning("the answer %s cannot be kept: the cluster is out of reach", lost.id)
        self._waiting.append(stored)
        self._hand_on_soon()

    async def get(self, id: str, owner: str | None) -> StoredResponse | None:
        await self._hand_on()
        found: StoredResponse | None = await self._front.ledger.call("response", id, owner)
        return found

    async def chain(self, id: str, owner: str | None) -> list[StoredResponse] | None:
        await self._hand_on()
        found: list[StoredResponse] | None = await self._front.ledger.call(
            "response_chain", id, owner
        )
        return found

    async def items(self, ids: Iterable[str], owner: str | None) -> dict[str, dict[str, Any]]:
        await self._hand_on()
        found: dict[str, dict[str, Any]] = await self._front.ledger.call(
            "response_items", list(ids), owner
        )
        return found

    async def delete(self, id: str, owner: str | None) -> bool:
        await self._hand_on()
        deleted: bool = await self._front.ledger.call("delete_response", id, owner)
        return deleted

    async def close(self) -> None:
        try:
            await self._hand_on(patience=0.0)
        except ServingError as error:
            logger.error("%d answers cannot be kept: %s", len(self._waiting), error.message)

    def _hand_on_soon(self) -> None:
        if self._waiting:
            self._front.ledger.spawn(self._try_to_hand_on())

    async def _try_to_hand_on(self) -> None:
        try:
            await self._hand_on(patience=0.0)
        except ServingError as error:
            logger.debug("%d answers are handed on later: %s", len(self._waiting), error.message)

    async def _hand_on_for_others(self, _: Any) -> None:
        await self._try_to_hand_on()

    async def _hand_on(self, **patience: float) -> None:
        """Return when all that was put before is in the ledger."""
        if not (self._waiting or self._one_at_a_time.locked()):
            return
        async with self._one_at_a_time:
            if handed := list(self._waiting):
                await self._front.ledger.call("put_responses", handed, **patience)
                self._waiting = [each for each in self._waiting if each not in handed]
