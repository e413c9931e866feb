"""What is being generated for clients of KoboldCpp's API, by owner and genkey."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from enginebay.chat.answer.running import RunningRequest
from enginebay_kobold.bodies import Performance
from enginebay_kobold.composer import KoboldComposer

Owner = tuple[Literal["key", "address"], str]
"""The name of an API key; for requests that need none, the address that they come from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningText:
    """A text that is being generated, or waits for that; of those without a `genkey` it is empty.

    `seed`: what its request asked for.
    """

    owner: Owner
    genkey: str
    seed: int | None
    running: RunningRequest
    composer: KoboldComposer


class RunningTexts:
    """All of them, and how long the last one took. Owners see and abort only their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._ended = clock()
        self._texts: list[RunningText] = []
        self._last = Performance(uptime=0, idletime=0)

    @asynccontextmanager
    async def during(self, text: RunningText) -> AsyncIterator[None]:
        """It is one of them while the block runs."""
        self._texts.append(text)
        try:
            yield
        finally:
            self._texts.remove(text)
            self._note(text)

    def so_far(self, owner: Owner, genkey: str) -> str:
        """The text of the last one with this key, as far as it has come; empty if none runs."""
        running = [text.composer for text in self._of(owner, genkey) if not text.composer.ended]
        return running[-1].text if running else ""

    def abort(self, owner: Owner, genkey: str) -> None:
        """End all with this key as they are; those that wait get an error."""
        for text in self._of(owner, genkey):
            text.running.cancel()

    def performance(self, *, running: int, waiting: int) -> Performance:
        """What the last text came to, and how busy the server is now."""
        now = self._clock()
        times = {"uptime": now - self._began, "idletime": now - self._ended}
        busy = {"queue": waiting, "idle": 0 if running or waiting else 1}
        return self._last.model_copy(update={**times, **busy})

    def _of(self, owner: Owner, genkey: str) -> Iterator[RunningText]:
        return (text for text in self._texts if (text.owner, text.genkey) == (owner, genkey))

    def _note(self, text: RunningText) -> None:
        counter = text.running.counter
        if counter is None or counter.time_to_first_token is None:
            return
        self._ended = self._clock()
        process = counter.time_to_first_token
        self._last = Performance(
            last_process=process,
            last_eval=counter.last_token_at - counter.received - process,
            last_token_count=counter.usage.completion_tokens,
            last_seed=-1 if text.seed is None else text.seed,
            total_gens=self._last.total_gens + 1,
            stop_reason=_stop_reason(text.composer),
            uptime=0,
            idletime=0,
        )


def _stop_reason(composer: KoboldComposer) -> Literal[-1, 0, 1, 2]:
    if composer.finish_reason in (None, "abort"):
        return -1
    if composer.finish_reason == "length":
        return 0
    return 1 if composer.stop_reason is None else 2
