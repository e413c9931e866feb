"""How long an answer may take from its first token on."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from enginebay.contract.types import Delta, ToolCallDelta

MAX_SECONDS = "max_seconds"
"""The `stop_reason` of choices that ended because their time was up."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The seconds that the choices of a prompt may take, from the first token of any of them on.

    `at_line_end`: what comes next up to a line break is let through, as llama-server does it.
    """

    seconds: float
    at_line_end: bool = False


class LimitedTime:
    """Passes on the deltas of one engine request until its time is up.

    `passed`: it was up; choices without an end have none then. `clock` is in seconds.
    """

    def __init__(
        self, limit: TimeLimit, choices: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self.passed = False
        self._limit = limit
        self._left = choices
        self._clock = clock
        self._end: float | None = None

    async def deltas(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """The deltas of `source`, which the caller closes."""
        while (delta := await self._next(source)) is not None:
            if self._end is None and not delta.prefill:
                self._end = self._clock() + self._limit.seconds
            self.passed = self._end is not None and self._clock() >= self._end
            if self.passed and self._limit.at_line_end and _ends_line(delta):
                delta = _ended(delta)
            self._left -= delta.finish_reason is not None
            yield delta
            if self.passed and (not self._limit.at_line_end or self._left <= 0):
                return

    async def _next(self, source: AsyncGenerator[Delta, None]) -> Delta | None:
        """None: there is no more, or not in time."""
        if self._end is None or self._limit.at_line_end:
            return await anext(source, None)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._end - self._clock())):
                return await anext(source, None)
        self.passed = True
        return None


def _ends_line(delta: Delta) -> bool:
    parts = (part.text for part in delta.parts if not isinstance(part, ToolCallDelta))
    return "\n" in delta.text or any("\n" in text for text in parts)


def _ended(delta: Delta) -> Delta:
    if delta.finish_reason:
        return delta
    return replace(delta, finish_reason="length", stop_reason=MAX_SECONDS)
