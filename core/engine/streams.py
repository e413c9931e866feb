"""What requests have been given and not yet taken, on the event loop."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from core.errors import ServingError
from core.types import Delta


class DeltaStream:
    """The deltas of one request, from the engine to whoever reads them."""

    def __init__(self) -> None:
        self._items: list[Delta | ServingError] = []
        self._available = asyncio.Event()

    def put(self, item: Delta | ServingError) -> None:
        """Add what the engine gave."""
        self._items.append(item)
        self._available.set()

    async def take(self) -> Iterable[Delta | ServingError]:
        """Wait until there is something; then all of it, as few deltas as possible."""
        await self._available.wait()
        self._available.clear()
        items, self._items = self._items, []
        return _merge(items)


def _merge(items: Iterable[Delta | ServingError]) -> Iterable[Delta | ServingError]:
    """Join what piled up for one choice while the client was slow into one delta.

    Deltas with logprobs stay apart: clients read one token an event there.
    """
    held: dict[int, Delta] = {}
    for item in items:
        if isinstance(item, ServingError):
            yield from held.values()
            held.clear()
            yield item
        elif item.logprobs is not None:
            yield item
        else:
            previous = held.get(item.index)
            held[item.index] = _join(previous, item) if previous else item
    yield from held.values()


def _join(first: Delta, second: Delta) -> Delta:
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        prefill_tokens=first.prefill_tokens + second.prefill_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
    )
