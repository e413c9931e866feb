"""Which choices the generator runs, and which have to wait."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any, Protocol

from enginebay import BatchLimits, EngineStats
from enginebay_exllamav2.adapters import Adapters
from enginebay_exllamav2.choice import LibraryChoice
from enginebay_exllamav2.job import Job
from enginebay_exllamav2.pages import Pages
from enginebay_exllamav2.vision.pictures import Pictures
from enginebay_exllamav2.vision.placing import Placing

logger = logging.getLogger(__name__)

_TURN = 64
"""Steps that the requests of one adapter run while those of another wait."""


class Model(Protocol):
    """The part of a loaded model used here; the library's types are its own."""

    model: Any
    cache: Any
    tokenizer: Any
    adapters: Adapters
    pictures: Pictures | None

    @property
    def paged(self) -> bool: ...
    @property
    def cache_tokens(self) -> int: ...
    @property
    def draft_tokens(self) -> int: ...
    def new_generator(self) -> Any: ...
    def close(self) -> None: ...


NewJob = Callable[[LibraryChoice, Pages], Job]


class Scheduler:
    """Gives the generator jobs for the choices that come first.

    A choice starts when there is room for its prompt. When the cache is full, the running one with
    the lowest priority is preempted: its job is cancelled, and another one will continue it,
    mostly with the pages it left. The same is done to let the requests of another adapter have
    their turn, since the library applies one to everything it runs, and after a failure.
    """

    def __init__(
        self, model: Model, limits: BatchLimits, new_job: NewJob, placing: Placing
    ) -> None:
        self.waiting: list[LibraryChoice] = []
        self.running: dict[LibraryChoice, Job] = {}
        self._model = model
        self._max_running = limits.max_batch_size if model.paged else 1
        self._new_job = new_job
        self._placing = placing
        self._arrivals = count()
        self._adapter: str | None = None
        self._turn = 0
        self._last_key: Hashable = None
        self._failed_together = 0
        self._preempted = 0
        self._drafted = 0
        self._accepted = 0
        self._use_new_generator()

    @property
    def stats(self) -> EngineStats:
        """Statistics of the scheduling."""
        return EngineStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used=sum(len(choice.token_ids) for choice in self.running),
            kv_total=self._model.cache_tokens,
            preempted=self._preempted,
            drafted=self._drafted if self._model.draft_tokens else None,
            accepted=self._accepted if self._model.draft_tokens else None,
        )

    def next_arrival(self) -> int:
        """A number for the next choice."""
        return next(self._arrivals)

    def add(self, choice: LibraryChoice) -> None:
        """Queue a choice."""
        bisect.insort(self.waiting, choice, key=lambda c: c.rank)

    def remove(self, choice: LibraryChoice) -> None:
        """Remove a choice, finished or not."""
        job = self.running.pop(choice, None)
        if job is not None:
            self._count_drafts(job)
            self.generator.cancel(job)  # which minds no job that has ended
        elif choice in self.waiting:
            self.waiting.remove(choice)

    def schedule(self) -> bool:
        """Start and preempt jobs; whether any are running."""
        self._placing.start_step()
        suspects = [choice for choice in (*self.waiting, *self.running) if choice.suspect]
        if suspects:
            suspect = min(suspects, key=lambda c: c.rank)
            for choice in [choice for choice in self.running if choice is not suspect]:
                self._preempt(choice)
            self._make_room()
            self._admit([] if suspect in self.running else [suspect])
        else:
            self._take_turns()
            self._make_room()
            self._admit(list(self.waiting))
        return bool(self.running)

    def start_over(self) -> list[LibraryChoice]:
        """After a failure: a new generator, and all that ran is suspect and will run alone first.

        Returns what ran.
        """
        choices = list(self.running)
        for job in self.running.values():
            self._count_drafts(job)
        self.running.clear()
        self.close()
        self._use_new_generator()
        for choice in choices:
            choice.take_back(0)
            choice.suspect = True
            self.add(choice)
        self._failed_together = len(choices)
        return choices

    def close(self) -> None:
        """End the threads of the generator, which would live until it is collected."""
        for pool in (self.generator.sampling_pool, self.generator.filter_pool):
            pool.shutdown(wait=False)

    def leave_adapter(self, name: str) -> None:
        """Apply an adapter no longer; nothing that has it is waiting or running."""
        if self._adapter == name:
            self._apply_adapter(None)

    def acquit(self, choice: LibraryChoice) -> None:
        """A suspect has run alone without a failure."""
        choice.suspect = False
        if self._failed_together > 1 and not any(c.suspect for c in self.waiting):
            # Each can run alone, but not all together: it is the size of the batch.
            self._max_running = max(1, self._failed_together // 2)
            logger.warning("decoding at most %d choices together from now on", self._max_running)
            self._failed_together = 0

    def convict(self) -> None:
        """A suspect has failed alone, so the size of the batch was not the cause."""
        self._failed_together = 0

    def _use_new_generator(self) -> None:
        self.generator = self._model.new_generator()
        self._pages = Pages(self.generator)
        self._adapter = None

    def _admit(self, candidates: Sequence[LibraryChoice]) -> None:
        free = self._pages.free
        stays = any(choice.request.adapter == self._adapter for choice in candidates)
        for choice in candidates:
            if len(self.running) >= self._max_running:
                break
            if choice.request.adapter != self._adapter:
                if self.running or stays:
                    continue  # its turn comes
                self._apply_adapter(choice.request.adapter)
            if not self._placing.place(choice):
                continue
            if not self._model.paged and choice.cache_key != self._last_key:
                self.generator.reset_page_table()
            self._last_key = choice.cache_key
            job = self._new_job(choice, self._pages)
            job.prepare_for_queue(self.generator, 0)
            free -= job.pages_needed
            if free < 0:
                break
            self.generator.enqueue(job)
            self.waiting.remove(choice)
            self.running[choice] = job

    def _count_drafts(self, job: Job) -> None:
        """Add up the draft counts of a job that leaves."""
        self._accepted += job.accepted_draft_tokens
        self._drafted += job.accepted_draft_tokens + job.rejected_draft_tokens

    def _make_room(self) -> None:
        """Give every running choice the pages that its next step needs."""
        for choice in sorted(self.running, key=lambda c: c.rank):
            while choice in self.running and not self.running[choice].grow():
                self._preempt(max(self.running, key=lambda c: c.rank))

    def _preempt(self, choice: LibraryChoice) -> None:
        job = self.running.pop(choice)
        choice.take_back(0)
        self.add(choice)
        self._preempted += 1
        self._count_drafts(job)
        self.generator.cancel(job)
        logger.debug("request %s is preempted", choice.request.request_id)

    def _take_turns(self) -> None:
        self._turn += 1
        others = {c.request.adapter or "" for c in self.waiting} - {self._adapter or ""}
        if not others or self._turn < _TURN:
            return
        for choice in list(self.running):
            self._preempt(choice)
        later = (name for name in sorted(others) if name > (self._adapter or ""))
        self._apply_adapter(next(later, min(others)) or None)

    def _apply_adapter(self, name: str | None) -> None:
        # Not by `set_loras`, which sets an empty list for none, and no job can run with that.
        self.generator.current_loras = None if name is None else self._model.adapters[name]
        self._adapter = name
        self._turn = 0
