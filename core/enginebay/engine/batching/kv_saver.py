"""Saves sequences that slots are about to forget, and brings them back for prompts."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from enginebay.contract.types import EngineStats
from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.runner import Runner
from enginebay.engine.batching.step import Work
from enginebay.engine.kv_store.prefix_index import count
from enginebay.engine.kv_store.store import KvStore, Saved

logger = logging.getLogger(__name__)

_WORTH_KEEPING = 64
"""Tokens; less is soon computed again."""

_WORTH_OF_TAIL = 8
"""A tail that is cut off a slot is worth keeping if it is more than this part of the slot."""

_MEASURED = 32
"""Tokens of prompts in a step that says how long they take."""

_WAIT = 0.01
"""Seconds that an engine with nothing else to do waits for a file at a time."""

_PATIENCE = 30.0
_LEAST_PATIENCE = 3.0
"""Seconds that a choice waits for its file, where it is not known what computing it would take; and
at least, where it is."""

CLOSING_SECONDS = 6.0
"""What is in the slots may take so long to save; a process is killed after `backend.GRACE`."""


@dataclass(slots=True, eq=False)
class _Reading:
    """A state on its way to a choice, and how many of its tokens the choice can use.

    `deadline`: by the clock, when the choice goes on without it.
    """

    saved: Saved
    tokens: int
    state: Future[memoryview | None]
    deadline: float


class KvSaver:
    """What a scheduler knows of a `KvStore`. Everything happens on the engine thread.

    Tokens of media are not kept: which embeddings they had depends on more than their ids.
    """

    def __init__(
        self,
        runner: Runner[Any, Any],
        store: KvStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._store = store
        self._clock = clock
        self._readings: dict[ChoiceState[Any], _Reading] = {}
        self._late: Future[memoryview | None] | None = None  # nobody waits for it any more
        self._looked: dict[ChoiceState[Any], tuple[Hashable, bool]] = {}
        self._token_seconds: float | None = None
        self._sequences_saved = 0
        self._tokens_restored = 0

    def add_stats(self, stats: EngineStats) -> EngineStats:
        """The stats with its own."""
        return replace(
            stats,
            saved_ram=self._store.ram_bytes,
            saved_disk=self._store.disk_bytes,
            sequences_saved=self._sequences_saved,
            tokens_restored=self._tokens_restored,
        )

    def took(self, batch: Iterable[Work[Any]], seconds: float) -> None:
        """A step with this work has taken so long."""
        tokens = sum(work.prompt_tokens for work in batch)
        if tokens >= _MEASURED:
            self._token_seconds = seconds / tokens

    def losing(self, slot: int, token_ids: Sequence[int], key: Hashable, kept: int) -> None:
        """A slot that nobody uses will forget its tokens after the first `kept`."""
        lost = len(token_ids) - kept
        if lost < _WORTH_KEEPING or lost * _WORTH_OF_TAIL <= len(token_ids):
            return
        digest = self._digest(key)
        if digest is None or min(token_ids) < 0 or self._store.has(digest, token_ids):
            return
        if self._store.has_room(len(token_ids)):
            self._save(slot, token_ids, digest)

    def close(self, slots: Sequence[tuple[int, Sequence[int], Hashable]]) -> None:
        """Save what these slots hold, the first ones first, as far as time allows."""
        deadline = self._clock() + CLOSING_SECONDS
        for slot, token_ids, key in slots if self._store.outlives else ():
            while not self._store.has_room(len(token_ids)) and self._clock() < deadline:
                self._store.flush(deadline, all=False)
            if self._clock() < deadline:
                self.losing(slot, token_ids, key, 0)
        self._store.close(deadline)

    def must_wait(
        self, choice: ChoiceState[Any], key: Hashable, reusable: int | None, held: Callable[[], int]
    ) -> bool:
        """Whether a state is being read that the choice will go on from.

        `held`: how many of its tokens slots hold already.
        """
        if reading := self._readings.get(choice):
            if reading.state.done() or self._clock() < reading.deadline:
                return not reading.state.done()
            logger.warning("a saved state takes too long to read; its tokens are computed")
            self._late = reading.state
            del self._readings[choice], self._looked[choice]
        now = self._store.changes, tuple(self._readings)
        before, waits = self._looked.get(choice, (None, False))
        if before != now:  # else the answer is the same
            waits = self._look(choice, key, reusable, held)
            self._looked[choice] = now, waits
        return waits

    def _look(
        self, choice: ChoiceState[Any], key: Hashable, reusable: int | None, held: Callable[[], int]
    ) -> bool:
        digest = self._digest(key)
        if digest is None:
            return False
        most = len(choice.cache_ids) - 1 if reusable is None else reusable
        found = self._store.find(digest, choice.cache_ids[:most])
        if not found:
            return False
        saved, tokens = found
        gained = tokens - held()
        if not self._is_cheaper(saved, gained):
            return False
        if self._readings:  # one at a time: the next one may find its prefix in a slot then
            return True
        state = self._store.fetch(saved)
        deadline = self._clock() + self._patience(gained)
        self._readings[choice] = _Reading(saved, tokens, state, deadline)
        return not state.done()

    def prefix(self, choice: ChoiceState[Any]) -> int:
        """How many tokens of the choice were read and can be restored."""
        reading = self._readings.get(choice)
        if reading is None or not reading.state.done() or reading.state.result() is None:
            return 0
        return reading.tokens

    def restore(self, choice: ChoiceState[Any], slot: int) -> bool:
        """Fill an empty slot with them; False, and said, if the model does not take them."""
        reading = self._readings[choice]
        state = reading.state.result()
        assert state is not None
        try:
            held = count(reading.saved.tokens)
            self._runner.restore(slot, state, held, reading.tokens)
        except Exception:
            logger.warning("a saved state could not be restored, and was dropped", exc_info=True)
            self._store.forget(reading.saved)
            self.forget(choice)
            return False
        self._tokens_restored += reading.tokens
        return True

    def forget(self, choice: ChoiceState[Any]) -> None:
        """The choice has been admitted, or has left."""
        self._looked.pop(choice, None)
        if reading := self._readings.pop(choice, None):
            reading.state.cancel()

    def wait(self) -> None:
        """Wait a moment for what is being read, with nothing else to do."""
        if self._readings:
            wait([reading.state for reading in self._readings.values()], _WAIT)

    def _is_cheaper(self, saved: Saved, gained: int) -> bool:
        """Whether to read it is cheaper than to compute the tokens that it saves."""
        if gained < _WORTH_KEEPING:
            return False
        if saved.state is not None:
            return True
        if self._late and not self._late.done():  # files are read one after the other
            return False
        seconds = self._store.seconds(saved)
        if seconds is None or self._token_seconds is None:
            return True
        return seconds < gained * self._token_seconds

    def _patience(self, gained: int) -> float:
        """How many seconds to wait for so many tokens: a disk may be slow, or hang."""
        if self._token_seconds is None:
            return _PATIENCE
        return max(2 * gained * self._token_seconds, _LEAST_PATIENCE)

    def _save(self, slot: int, token_ids: Sequence[int], digest: bytes) -> None:
        try:
            state = self._runner.save(slot, len(token_ids))
        except Exception:
            logger.warning("the KV of a sequence could not be saved", exc_info=True)
            return
        if self._store.put(digest, token_ids, state):
            self._sequences_saved += 1

    def _digest(self, key: Hashable) -> bytes | None:
        """The key in the store, made of adapter and salt; None for what is not to be saved."""
        match key:  # as `Scheduler` makes it; the last part is of prompts that share nothing
            case ((str() | None as adapter, str() | None as salt), None):
                weights = None if adapter is None else self._runner.fingerprint(adapter)
                if adapter is None or weights is not None:
                    return hashlib.sha256(json.dumps([weights, salt]).encode()).digest()
        return None
