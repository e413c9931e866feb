"""Decides which tokens the next step runs and which requests wait."""

import bisect
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, Generic

from enginebay.contract.types import EngineStats
from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.drafts import Drafter
from enginebay.engine.batching.kv_saver import KvSaver
from enginebay.engine.batching.runner import Runner, RunnerMemory, Sampler
from enginebay.engine.batching.slots import Slots, common_prefix
from enginebay.engine.batching.spans import reusable
from enginebay.engine.batching.step import BatchLimits, StepDivider, Work

logger = logging.getLogger(__name__)

# A choice waits for another that is still prefilling a common prefix this long.
_WORTH_WAITING = 32

# Room left for each running choice when one more is admitted, so that it need not leave at once.
_HEADROOM = 16


class Scheduler(Generic[Sampler]):
    """Schedules decoding choices first and fills the rest of a step with chunks of prompts.

    Choices are admitted by the room they need now. When the cache is full, cached prefixes are
    evicted first, then the newest choice is preempted: it keeps its tokens, waits, and is
    recomputed.
    """

    def __init__(
        self,
        runner: Runner[Any, Sampler],
        slots: Slots,
        limits: BatchLimits,
        drafter: Drafter | None = None,
        saver: KvSaver | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`saver`: brings back sequences that no slot holds any more. `clock`: seconds."""
        self.waiting: list[ChoiceState[Sampler]] = []
        self.running: list[ChoiceState[Sampler]] = []
        self._memory: RunnerMemory = runner.memory
        self._slots = slots
        self._limits = limits
        self._saver = saver
        self._divider = StepDivider(runner, limits, drafter, clock)
        self._max_running = min(limits.max_batch_size, runner.memory.slots)
        self._arrivals = count()
        self._adapter: str | None = None
        self._failed_together = 0
        self._is_full = False
        self._preempted = 0
        self._cache_queries = 0
        self._cache_hits = 0

    @property
    def stats(self) -> EngineStats:
        """Scheduling statistics."""
        return EngineStats(
            running=len(self.running),
            waiting=sum(1 + len(choice.siblings) for choice in self.waiting),
            kv_used=self._slots.used_tokens,
            kv_total=self._memory.tokens,
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
            preempted=self._preempted,
        )

    def next_arrival(self) -> int:
        """A number for the next choice."""
        return next(self._arrivals)

    def add(self, choice: ChoiceState[Sampler]) -> None:
        """Queue a choice, its siblings with it."""
        bisect.insort(self.waiting, choice, key=lambda s: s.rank)

    def schedule(self) -> list[Work[Sampler]]:
        """What to run now; empty only when there is nothing to do."""
        suspect = min(filter(lambda s: s.suspect, self._all()), key=lambda s: s.rank, default=None)
        if suspect:
            return self._schedule_alone(suspect)
        self._admit(self.waiting)
        self._make_room()
        work = self._divide()
        while (
            not work and len(self.running) > 1
        ):  # items that must be whole are in each other's way
            self._preempt()
            self._make_room()
            work = self._divide()
        return work

    def fork(self, leader: ChoiceState[Sampler]) -> list[ChoiceState[Sampler]]:
        """The siblings that start once their leader has prefilled the shared prompt.

        Those without room wait.
        """
        started = []
        for sibling in leader.siblings:
            assert leader.slot is not None
            if len(self.running) < self._max_running:
                sibling.slot = self._slots.fork(leader.slot)
            if sibling.slot is None:
                self.add(sibling)
                continue
            sibling.computed = leader.computed
            self.running.append(sibling)
            started.append(sibling)
        leader.siblings = []
        return started

    def ran(self, batch: Sequence[Work[Sampler]]) -> None:
        """Record that a batch has been run."""
        for work in batch:
            self._slots.extend(work.chunk.slot, work.cache_ids)
            work.choice.computed += len(work.chunk.token_ids)

    def took(self, batch: Sequence[Work[Sampler]], seconds: float) -> None:
        """Record how long a step took, from the start of its pass to its last sampled token."""
        self._divider.took(batch, seconds)
        if self._saver:
            self._saver.took(batch, seconds)

    def cut_back(self, choice: ChoiceState[Sampler]) -> None:
        """Forget what was computed of a choice beyond its tokens: drafts, and what was taken back.

        The last token has to be run again, or is yet to be run.
        """
        known = len(choice.token_ids) - 1
        if choice.slot is None or choice.computed <= known:
            return
        known = reusable(choice.request.media, known) if self._memory.cuts else 0
        self._slots.cut(choice.slot, known)
        choice.computed = known

    def remove(self, choice: ChoiceState[Sampler]) -> None:
        """Remove a choice, finished or not; its slot keeps its tokens as a cached prefix."""
        if self._saver:
            self._saver.forget(choice)
        if choice.slot is not None:
            self._slots.release(choice.slot)
            choice.slot = None
            self.running.remove(choice)
            self._is_full = False
        elif choice in self.waiting:
            self.waiting.remove(choice)

    def memory_is_full(self) -> bool:
        """Make room after the model unexpectedly ran out of it; False if impossible.

        What is preempted for it waits until another choice has ended.
        """
        if self._slots.evict():
            return True
        if len(self.running) < 2:
            return False
        self._preempt()
        self._is_full = True
        return self._slots.evict()

    def start_over(self, suspects: Iterable[ChoiceState[Sampler]]) -> None:
        """After a failure: requeue everything, and run the suspects alone first."""
        suspects = list(suspects)
        for choice in suspects:
            choice.suspect = True
        self._failed_together = len(suspects)
        while self.running:
            self._preempt()
        self._slots.clear()

    def acquit(self, choice: ChoiceState[Sampler]) -> None:
        """A suspect has run alone without a failure."""
        choice.suspect = False
        if self._failed_together and not any(s.suspect for s in self._all()):
            # Each can run alone, but not all together: it is the size of the batch.
            self._max_running = max(1, self._failed_together // 2)
            logger.warning("limiting the batch to %d choices from now on", self._max_running)
            self._failed_together = 0

    def convict(self) -> None:
        """A suspect has failed alone, so the size of the batch was not the cause."""
        self._failed_together = 0

    def _all(self) -> list[ChoiceState[Sampler]]:
        return self.waiting + self.running

    def _schedule_alone(self, suspect: ChoiceState[Sampler]) -> list[Work[Sampler]]:
        while suspect.slot is None:
            self._admit([suspect])
            if suspect.slot is None:  # others that have been acquitted are in the way
                self._preempt()
        self._make_room(keep=suspect)
        return self._divider.divide([suspect], self._slots.free_tokens)

    def _make_room(self, keep: ChoiceState[Sampler] | None = None) -> None:
        """Ensure room for one more token of each running choice, if possible for a whole step."""
        most = self._limits.batch_tokens
        wanted = sum(s.pending if s.request.media else min(s.pending, most) for s in self.running)
        while self._slots.free_tokens < wanted and self._slots.evict():
            pass
        while self._slots.free_tokens < len(self.running) > 1:
            self._preempt(keep)
            while self._slots.free_tokens < len(self.running) and self._slots.evict():
                pass

    def _preempt(self, keep: ChoiceState[Sampler] | None = None) -> None:
        last = max((s for s in self.running if s is not keep), key=lambda s: s.rank)
        assert last.slot is not None
        self.running.remove(last)
        self._slots.release(last.slot)
        last.slot, last.computed = None, 0
        self.add(last)
        self._preempted += 1
        logger.debug("request %s was preempted", last.request.request_id)

    def _admit(self, candidates: Iterable[ChoiceState[Sampler]]) -> None:
        if self._is_full and self.running:
            return
        for choice in list(candidates):
            places = self._max_running - len(self.running)
            if not self._memory.cuts and self.running:
                places -= sum(len(s.siblings) for s in (*self.running, choice))
            if places < 1:
                break
            if self._worth_waiting(choice):
                continue
            if self._is_read_for(choice):
                continue
            slot = self._place(choice)
            if slot is None:
                break
            choice.slot = slot
            choice.computed = len(self._slots.tokens(slot))
            if choice.cached is None:
                choice.cached = choice.computed
                self._cache_queries += len(choice.token_ids)
                self._cache_hits += choice.computed
            self.waiting.remove(choice)
            self.running.append(choice)

    def _is_read_for(self, choice: ChoiceState[Sampler]) -> bool:
        """Whether to wait for a saved sequence that it goes on from."""
        if self._saver is None or choice.suspect:
            return False
        key = self._cache_key(choice)
        held = partial(self._slots.prefix, choice.cache_ids, key)
        return self._saver.must_wait(choice, key, self._reusable(choice), held)

    def _place(self, choice: ChoiceState[Sampler]) -> int | None:
        """A slot for it, with the longest prefix there is; None if there is no room."""
        headroom = sum(s.pending + _HEADROOM for s in self.running)
        token_ids, key = choice.cache_ids, self._cache_key(choice)
        if self._saver and (saved := self._saver.prefix(choice)):
            slot = None
            if saved > self._slots.prefix(token_ids, key):
                restore = partial(self._saver.restore, choice)
                slot = self._slots.restore(token_ids, key, headroom, saved, restore)
            if slot is not None:
                self._saver.forget(choice)
                return slot
        slot = self._slots.acquire(token_ids, key, headroom, self._reusable(choice))
        if slot is not None and self._saver:
            self._saver.forget(choice)
        return slot

    def _cache_key(self, choice: ChoiceState[Sampler]) -> Hashable:
        alone = choice.request.media and self._memory.media_spans == "prompt"
        return choice.cache_key, choice.request.request_id if alone else None

    def _reusable(self, choice: ChoiceState[Sampler]) -> int | None:
        """How many tokens of a prefix may be reused at most; None: all but the last."""
        if self._limits.fixes(choice.request.sampling):
            return 0
        if choice.reads_prompt:
            return choice.known_logprobs
        spans = choice.request.media
        if spans and self._memory.media_spans == "prompt":
            return 0
        return reusable(spans, len(choice.token_ids) - 1) if spans else None

    def _worth_waiting(self, choice: ChoiceState[Sampler]) -> bool:
        """Whether a running choice is prefilling the same prefix."""
        if not self._memory.cuts or choice.reads_prompt:
            return False
        if self._limits.fixes(choice.request.sampling):
            return False
        return any(
            other.computed < common_prefix(other.cache_ids, choice.cache_ids) >= _WORTH_WAITING
            for other in self.running
            if other.pending > 1 and self._cache_key(other) == self._cache_key(choice)
        )

    def _same_adapter(self, choices: list[ChoiceState[Sampler]]) -> list[ChoiceState[Sampler]]:
        """For models that apply one adapter at a time: the choices of the current adapter."""
        if not self._memory.one_adapter:
            return choices
        adapters = sorted({s.request.adapter or "" for s in choices})
        if len(adapters) > 1:
            later = (a for a in adapters if a > (self._adapter or ""))
            self._adapter = next(later, adapters[0])
            return [s for s in choices if (s.request.adapter or "") == self._adapter]
        return choices

    def _divide(self) -> list[Work[Sampler]]:
        return self._divider.divide(self._same_adapter(self.running), self._slots.free_tokens)
