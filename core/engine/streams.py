"""Buffers unread deltas on the event loop."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from core.contract.errors import ServingError
from core.contract.types import Delta


class DeltaStream:
    """The delta stream of one request, from the engine to its reader."""

    def __init__(self) -> None:
        self._items: list[Delta | ServingError] = []
        self._arrival: asyncio.Future[None] | None = None  # what the reader waits for

    def put(self, item: Delta | ServingError) -> None:
        """Add what has arrived."""
        self._items.append(item)
        if self._arrival and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self) -> Iterable[Delta | ServingError]:
        """Wait until something has arrived; then all of it, in as few deltas as possible."""
        if not self._items:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        items, self._items = self._items, []
        return items if len(items) == 1 else _merge(items)


def _merge(items: Iterable[Delta | ServingError]) -> Iterable[Delta | ServingError]:
    """Join the deltas of a choice that piled up while the client was slow.

    Deltas with logprobs stay apart: clients read one token an event there. So do those that say
    how far the prompt is read.
    """
    held: defaultdict[int, list[Delta]] = defaultdict(list)
    for item in items:
        if isinstance(item, ServingError):
            yield from map(_joined, held.values())
            held.clear()
            yield item
        elif item.logprobs is not None or item.prefill:
            if before := held.pop(item.index, None):
                yield _joined(before)
            yield item
        else:
            held[item.index].append(item)
    yield from map(_joined, held.values())


def _joined(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    return replace(
        deltas[-1],
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        prefill_tokens=sum(delta.prefill_tokens for delta in deltas),
        cached_tokens=sum(delta.cached_tokens for delta in deltas),
        pieces=tuple((len(delta.text), len(delta.token_ids)) for delta in deltas),
        prompt_logprobs=deltas[0].prompt_logprobs,
        grammar_s=sum(delta.grammar_s for delta in deltas),
        parts=tuple(chain.from_iterable(delta.parts for delta in deltas)),
        usage=next((delta.usage for delta in reversed(deltas) if delta.usage), None),
    )
