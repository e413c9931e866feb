"""Orders from one front to others, and what these answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from enginebay.models.loading.clock import Clock, within
from enginebay.server.peers import Answers
from enginebay_cluster.fronts.members import Member
from enginebay_cluster.fronts.said import Order

_POLL = 20.0
"""Seconds after which a front that waits for orders is told that there are none."""


@dataclass(slots=True)
class _Box:
    """Orders for one front; `filled` is set while there are some."""

    orders: list[Order] = field(default_factory=list)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class PostOffice:
    """A box for each front, which it empties, and answers that others wait for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count(1)
        self._boxes: dict[str, _Box] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def orders(self, front: str, after: int) -> list[Order]:
        """What a front is to do, as soon as there is something, those up to `after` being known."""
        box = self._boxes.setdefault(front, _Box())
        self._drop(box, after)
        await within(self._clock, _POLL, box.filled)
        return list(box.orders)

    def answer(self, number: int, value: Any) -> None:
        """What a front says to an order."""
        asked = self._asked.get(number)
        if asked and not asked.done():
            asked.set_result(value)

    def post(self, front: str, kind: str, value: Any) -> int:
        """An order for a front, which nobody waits for; its number."""
        box = self._boxes.setdefault(front, _Box())
        order = Order(next(self._numbers), kind, value)
        box.orders.append(order)
        box.filled.set()
        return order.number

    async def ask(self, fronts: Sequence[Member], kind: str, value: Any, limit: float) -> Answers:
        """Have fronts do something, and wait for their answers for `limit` seconds at most."""
        loop = asyncio.get_running_loop()
        asked: dict[int, asyncio.Future[Any]] = {}
        for front in fronts:
            number = self.post(front.id, kind, value)
            asked[number] = self._asked[number] = loop.create_future()
        over = asyncio.Event()
        all_of_them = asyncio.gather(*asked.values(), return_exceptions=True)
        all_of_them.add_done_callback(lambda _: over.set())
        try:
            await within(self._clock, limit, over)
            answers = Answers()
            for front, answer in zip(fronts, asked.values(), strict=True):
                if answer.done() and not answer.cancelled():
                    answers.given.append((front.name, answer.result()))
                else:
                    answers.silent.append(front.name)
            return answers
        finally:
            all_of_them.cancel()
            for number in asked:
                del self._asked[number]

    def close_box(self, front: str) -> None:
        """A front has gone; nobody waits for what it would have answered."""
        box = self._boxes.pop(front, _Box())
        box.filled.set()
        for order in box.orders:
            if asked := self._asked.get(order.number):
                asked.cancel()

    def _drop(self, box: _Box, after: int) -> None:
        box.orders = [order for order in box.orders if order.number > after]
        if not box.orders:
            box.filled.clear()
