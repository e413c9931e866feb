"""Texts of several calls, and which of them share the next forward pass."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Text = Sequence[int]
Row = NDArray[np.float32]

_FREE_PADDING = 64
"""Tokens of padding that cost less than a pass of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """What a pass may have: so many texts, and so many tokens unless it is one text only.

    `pads`: texts are padded to the longest; padding counts, and is at most an eighth of a pass, or
    64 tokens.
    """

    max_texts: int
    batch_tokens: int
    pads: bool

    def allow(self, lengths: Sequence[int]) -> bool:
        """Whether texts of these lengths, longest first, may share a pass."""
        if len(lengths) == 1:
            return True
        computed = self._computed(lengths)
        padding = computed - sum(lengths)
        return (
            len(lengths) <= self.max_texts
            and computed <= self.batch_tokens
            and padding <= max(computed // 8, _FREE_PADDING)
        )

    def halved(self, lengths: Sequence[int]) -> "PassLimits":
        """The same for passes half as large as one of texts of these lengths, longest first."""
        return replace(self, batch_tokens=self._computed(lengths) // 2)

    def _computed(self, lengths: Sequence[int]) -> int:
        return len(lengths) * lengths[0] if self.pads else sum(lengths)


class PoolingCall:
    """The texts of one call, and what has been computed of them."""

    def __init__(self, texts: Sequence[Text], convert: Callable[[Row], Any], turn: int) -> None:
        self.future: Future[list[Any]] = Future()
        self.turn = turn
        self.waiting = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        self._texts = texts
        self._convert = convert
        self._results: list[Any] = [None] * len(texts)

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, index: int) -> Text:
        """One of its texts."""
        return self._texts[index]

    def put(self, index: int, row: Row) -> None:
        """What the model made of a text; the last one completes the call."""
        self.waiting.remove(index)
        self._results[index] = self._convert(row)
        if not self.waiting:
            self.future.set_result(self._results)


Place = tuple[PoolingCall, int]
"""A text of a call."""


class PoolingQueue:
    """Calls that are not done.

    Each pass is led by the longest text of the call whose turn it is, and filled with texts of all
    calls that are not longer. Calls take turns; a new one goes before those that led a pass since
    it came, and behind all others. So a long list delays a short one by one pass, and calls that
    keep arriving delay nobody for ever.
    """

    def __init__(self, limits: PassLimits) -> None:
        self.limits = limits
        self._calls: list[PoolingCall] = []
        self._passes = 0

    def __len__(self) -> int:
        """How many texts wait."""
        return sum(len(call.waiting) for call in self._calls)

    def add(self, texts: Sequence[Text], convert: Callable[[Row], Any]) -> Future[list[Any]]:
        """Queue the texts of a call; its result is what `convert` makes of each one's numbers."""
        call = PoolingCall(texts, convert, self._passes - 1)
        if texts:
            self._calls.append(call)
            call.future.add_done_callback(lambda _: self._calls.remove(call))
        else:
            call.future.set_result([])
        return call.future

    def take(self) -> list[Place]:
        """The texts of the next pass, longest first; they wait until their call has their rows."""
        if not self._calls:
            return []
        self._passes += 1
        lead = min(self._calls, key=lambda call: call.turn)
        longest = len(lead.text(lead.waiting[0]))
        lead.turn = self._passes
        places: list[Place] = []
        lengths: list[int] = []
        for call, index in self._not_longer(longest, lead):
            lengths.append(len(call.text(index)))
            if not self.limits.allow(lengths):
                break
            places.append((call, index))
        return places

    def _not_longer(self, longest: int, lead: PoolingCall) -> Iterator[Place]:
        """Texts of at most this length, longest first, of equal ones those of `lead` first."""
        calls = [lead, *sorted(self._calls, key=lambda call: call.turn)]
        places = itertools.chain.from_iterable(
            ((call, index) for index in call.waiting) for call in dict.fromkeys(calls)
        )
        fitting = [place for place in places if len(place[0].text(place[1])) <= longest]
        yield from sorted(fitting, key=lambda place: -len(place[0].text(place[1])))
