"""Deltas on the event loop: handed over when they arrive, or kept until they are read."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import Any

from enginebay.contract.errors import ServingError
from enginebay.contract.types import Delta

HandOver = Callable[[Delta], bool]
"""Takes a delta in its reader's place; False if the reader has to."""


class DeltaStream:
    """The delta stream of one request, from the engine to its reader.

    `compiled`: the seconds that its constraint took to compile, which its first token tells.
    `hand_over`: who takes what arrives while the reader waits.
    """

    def __init__(self) -> None:
        self.compiled = 0.0
        self.hand_over: HandOver | None = None
        self._items: list[Delta | ServingError] = []
        self._arrival: asyncio.Future[None] | None = None  # what the reader waits for
        self._error: Exception | None = None

    def put(self, item: Delta | ServingError, *, more: bool = False) -> None:
        """Add what has arrived, or hand it over where the reader waits, so has sent all before it.

        `more`: others are on their way already, which the reader can join to this one.
        """
        if self.compiled and isinstance(item, Delta) and not item.prefill:
            item, self.compiled = replace(item, grammar_init_s=self.compiled), 0.0
        waiting = self._arrival
        if waiting is None or waiting.done():
            self._items.append(item)
            return
        if self.hand_over and not more and isinstance(item, Delta):
            try:
                if self.hand_over(item):
                    return
            except Exception as error:
                self._error = error  # in place of the delta
        self._items.append(item)
        waiting.set_result(None)

    async def take(self) -> Iterable[Delta | ServingError]:
        """Wait until something has arrived; then all of it, in as few deltas as possible.

        Raises what has gone wrong where a delta was handed over.
        """
        if not self._items:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self._error:
            raise self._error
        items, self._items = self._items, []
        return items if len(items) == 1 else merged_deltas(items)


class EngineStream(AsyncGenerator[Delta, None]):
    """The deltas of a request to an engine, as a generator.

    Its reader may also have them handed over, one by one, while it waits for the next.
    """

    def __init__(self, deltas: AsyncGenerator[Delta, None], stream: DeltaStream) -> None:
        self._deltas = deltas
        self._stream = stream

    def hand_over(self, to: HandOver) -> None:
        """Call `to` with what arrives, where the reader would be woken to read just that."""
        self._stream.hand_over = to

    def __anext__(self) -> Coroutine[Any, Any, Delta]:
        return self._deltas.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, Delta]:
        """As every generator."""
        return self._deltas.asend(value)

    def athrow(  # type: ignore[override]
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Coroutine[Any, Any, Delta]:
        """As every generator."""
        return self._deltas.athrow(kind, error, traceback)  # type: ignore[arg-type]

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Abort the request, unless it has ended."""
        return self._deltas.aclose()


def merged_deltas(items: Iterable[Delta | ServingError]) -> Iterable[Delta | ServingError]:
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
        grammar_init_s=sum(delta.grammar_init_s for delta in deltas),
        grammar_s=sum(delta.grammar_s for delta in deltas),
        drafted_tokens=sum(delta.drafted_tokens for delta in deltas),
        accepted_tokens=sum(delta.accepted_tokens for delta in deltas),
        parts=tuple(chain.from_iterable(delta.parts for delta in deltas)),
        usage=next((delta.usage for delta in reversed(deltas) if delta.usage), None),
    )
