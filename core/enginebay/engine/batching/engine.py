"""Continuous batching: a step runs one token per decoding choice and chunks of prompts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Generic

from enginebay.contract.errors import ServingError
from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.contract.types import Delta, EngineStats, GenerationRequest, ModelInfo
from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.drafts import Drafter
from enginebay.engine.batching.kv_saver import KvSaver
from enginebay.engine.batching.runner import (
    Chunk,
    Logits,
    MemoryFullError,
    Runner,
    Sampled,
    Sampler,
)
from enginebay.engine.batching.scheduler import Scheduler
from enginebay.engine.batching.slots import Slots
from enginebay.engine.batching.step import BatchLimits, Work
from enginebay.engine.batching.taking_back import Uncertain
from enginebay.engine.batching.text_engine import AdapterStore, TextEngine
from enginebay.engine.batching.tokenizing import Tokenizer
from enginebay.engine.completion import Completion, TokensToText
from enginebay.engine.detokenizer import Detokenizer
from enginebay.engine.failures import failure
from enginebay.engine.kv_store.store import KvStore
from enginebay.engine.sampler.logits import Mask
from enginebay.grammar.compiler import GrammarCompiler
from enginebay.grammar.constraint import fill_masks

logger = logging.getLogger(__name__)

Output = tuple[str, Delta | ServingError]


class BatchingEngine(TextEngine, Generic[Logits, Sampler]):
    """An engine over any `Runner`.

    A failure of the model or of sampling is isolated: the cache is cleared and the choices of the
    batch are recomputed, each alone at first. Only one that fails alone gets the error. If not even
    a single token can be computed any more, the engine is dead.

    Tokens forced by a constraint or a reasoning budget are not sampled; where possible, they are
    computed together with the next one.
    """

    def __init__(
        self,
        runner: Runner[Logits, Sampler],
        tokenizer: Tokenizer,
        info: ModelInfo,
        limits: BatchLimits,
        *,
        eos_token_ids: frozenset[int],
        new_detokenizer: Callable[[], TokensToText] | None = None,
        drafter: Drafter | None = None,
        compiler: GrammarCompiler | None = None,
        adapters: AdapterStore | None = None,
        kv_store: KvStore | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`new_detokenizer`: creates one for a choice, by default from the tokenizer's `decode`.

        `compiler`: None for a vocabulary without constrained decoding.
        `adapters`: those of the runner; None if none can be loaded at run time.
        `kv_store`: for the KV of sequences that leave the runner's memory.
        `clock`: seconds, by which steps are timed: how many prompt tokens they may have, whether
        drafts pay, whether saved sequences are worth reading.
        """
        info = replace(info, unsupported=info.unsupported - {"banned_strings"})
        if not runner.memory.chunks:  # then a prompt has logits at its end only
            info = replace(info, unsupported=info.unsupported | {"prompt_logprobs"})
        super().__init__(
            tokenizer,
            replace(
                info,
                max_batch_size=limits.max_batch_size,
                reports_prefill=True,
                predictions=runner.memory.cuts,
            ),
            eos_token_ids=eos_token_ids,
            compiler=compiler,
            max_choices=None if runner.memory.cuts else limits.max_batch_size,
            adapters=adapters,
        )
        self._runner = runner
        self._new_detokenizer = new_detokenizer or partial(Detokenizer, tokenizer.decode)
        self._clock = clock
        self._saver = KvSaver(runner, kv_store) if kv_store is not None else None
        self._slots = Slots(runner, self._saver)
        self._scheduler: Scheduler[Sampler] = Scheduler(
            runner, self._slots, limits, drafter, self._saver, clock
        )
        self._requests: dict[str, list[ChoiceState[Sampler]]] = {}
        self._drafts = drafter is not None
        self._drafted = 0
        self._accepted = 0

    def add_request(self, request: GenerationRequest) -> None:
        self._limits.check(request)
        choices = self._requests[request.request_id] = []
        try:
            for index in range(request.n):
                choices.append(self._new_choice(request, index))
        except ServingError:
            self.abort_request(request.request_id)
            raise
        choices[0].siblings = choices[1:]
        self._scheduler.add(choices[0])

    def step(self) -> list[Output]:
        batch = self._scheduler.schedule()
        outputs: list[Output] = []
        if not batch:
            self._runner.wait()
            if self._saver:
                self._saver.wait()
            return outputs
        began = self._clock()
        try:
            logits = self._runner.run([work.chunk for work in batch])
            self._scheduler.ran(batch)
            outputs += _prefilled(batch)
            self._read_prompts(logits, batch)
            for output in self._sample(logits, batch):
                outputs.append(output)  # one by one: what was sampled before a failure counts
            self._scheduler.took(batch, self._clock() - began)
        except MemoryFullError as error:
            if not self._scheduler.memory_is_full():
                outputs += self._recover(batch, error)
        except Exception as error:
            outputs += self._recover(batch, error)
        return outputs

    def abort_request(self, request_id: str) -> None:
        self._remove(self._requests.pop(request_id, ()))

    def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        choices = self._requests.get(request_id, ())
        return sum(each.end_reasoning(budget, self._new_detokenizer()) for each in choices)

    def stats(self) -> EngineStats:
        stats = self._scheduler.stats
        if self._drafts or self._drafted:
            stats = replace(stats, drafted=self._drafted, accepted=self._accepted)
        return self._saver.add_stats(stats) if self._saver else stats

    def close(self) -> None:
        for request_id in list(self._requests):
            self.abort_request(request_id)
        if self._saver:
            self._saver.close(self._slots.cached)
        self._runner.close()

    def _new_choice(self, request: GenerationRequest, index: int) -> ChoiceState[Sampler]:
        completion = self._completion(request, index)
        sampler = self._runner.sampler(request, index)
        choice = ChoiceState(request, index, self._scheduler.next_arrival(), sampler, completion)
        if request.sampling.banned_strings:
            choice.uncertain = Uncertain(request.sampling)
        if not index and "prompt_logprobs" not in self.info.unsupported:
            choice.ask_for_prompt_logprobs()
        return choice

    def _completion(self, request: GenerationRequest, index: int) -> Completion:
        return self._new_completion(request, index, self._new_detokenizer(), takes_back=True)

    def _read_prompts(self, logits: Logits, batch: Sequence[Work[Sampler]]) -> None:
        """Prompt logprobs of the computed tokens, for the choices that requested them."""
        row = 0
        for work in batch:
            if work.reads_prompt:
                chunk, choice = work.chunk, work.choice
                known, last = choice.known_logprobs, len(choice.request.prompt_token_ids) - 1
                places = range(known, min(chunk.start + chunk.logits, last))
                choice.prompt_logprobs += self._runner.logprobs(
                    logits,
                    [row + place - chunk.start for place in places],
                    [choice.token_ids[place + 1] for place in places],
                    choice.request.sampling.prompt_logprobs or 0,
                )
            row += work.chunk.logits

    def _sample(self, logits: Logits, batch: Sequence[Work[Sampler]]) -> Iterable[Output]:
        """Samples a token for each choice with logits, and more where a draft was accepted."""
        rows = _rows(batch)
        for work in [work for work in rows if work.choice.siblings]:
            rows |= {Work(c, work.chunk): rows[work] for c in self._scheduler.fork(work.choice)}
        guessed = {work: work.draft for work in rows}
        for work in rows:
            work.choice.drafted += len(work.draft)
            self._drafted += len(work.draft)
        while rows:
            for work, token in self._next_tokens(logits, rows):
                if work not in rows:  # another choice of its request has failed
                    continue
                choice = work.choice
                request_id = choice.request.request_id
                draft = guessed[work]
                right = bool(draft) and draft[0] == token.token_id
                if right:
                    choice.accepted.append(len(choice.token_ids))
                    self._accepted += choice.uncertain is None
                try:
                    goes_on, deltas = self._append(choice, token)
                    for delta in deltas:
                        yield request_id, delta
                    if goes_on and right and not choice.finished:
                        rows[work] += 1
                        guessed[work] = draft[1:]
                        continue
                    self._scheduler.cut_back(choice)
                    for delta in self._append_forced(choice):
                        yield request_id, delta
                except ServingError as error:
                    self.abort_request(request_id)
                    for other in [w for w in rows if w.choice.request is choice.request]:
                        del rows[other]
                    yield request_id, error
                else:
                    del rows[work]
                    self._settle(work)

    def _append(
        self, choice: ChoiceState[Sampler], sampled: Sampled
    ) -> tuple[bool, Sequence[Delta]]:
        """Add a token; whether it was not taken back, and the deltas that are certain by it."""
        uncertain = choice.uncertain
        if uncertain is None:
            return True, [choice.append(sampled)]
        stays, uncertain.stays = uncertain.stays, False
        delta = choice.append(sampled, stays=stays)
        uncertain.tokens.append((sampled, stays))
        if count := choice.completion.to_take_back:
            uncertain.take_back(count)
            request, index = choice.request, choice.index
            choice.go_back(self._completion(request, index), self._new_detokenizer())
            said = choice.token_ids[len(request.prompt_token_ids) :]
            choice.sampler = self._runner.restart(choice.sampler, request, index, said)
            self._scheduler.cut_back(choice)
            return False, ()
        return True, uncertain.hold(delta, 0 if choice.finished else choice.completion.uncertain)

    def _mask(self, choice: ChoiceState[Sampler]) -> Mask | None:
        """What may come next: what the constraint allows, without what was taken back there."""
        constraint = choice.completion.constraint
        mask = constraint.mask if constraint else None
        if choice.uncertain is None:
            return mask
        return choice.uncertain.mask(mask, self.info.vocab_size)

    def _next_tokens(
        self, logits: Logits, rows: Mapping[Work[Sampler], int]
    ) -> Iterable[tuple[Work[Sampler], Sampled]]:
        """One token for each: the forced one, else a sampled one."""
        forced = {work: work.choice.completion.forced for work in rows}
        free = [work for work, token_id in forced.items() if token_id is None]
        if free:
            constraints = [work.choice.completion.constraint for work in free]
            if self._compiler:
                fill_masks(self._compiler, filter(None, constraints))
            sampled = self._runner.sample(
                logits,
                [rows[work] for work in free],
                [work.choice.sampler for work in free],
                [self._mask(work.choice) for work in free],
            )
            yield from zip(free, sampled, strict=True)
        for work, token_id in forced.items():
            if token_id is not None and work in rows:
                sampler = work.choice.sampler
                yield work, self._runner.force(logits, rows[work], sampler, token_id)

    def _append_forced(self, choice: ChoiceState[Sampler]) -> Iterator[Delta]:
        """The forced tokens, which the model then computes with the last token in one chunk."""
        params = choice.request.sampling
        if not self._runner.memory.chunks or params.logprobs is not None:
            return
        while not choice.finished and (token_id := choice.completion.forced) is not None:
            goes_on, deltas = self._append(choice, Sampled(token_id))
            if not goes_on:
                return
            self._runner.accept(choice.sampler, token_id)
            yield from deltas

    def _settle(self, work: Work[Sampler]) -> None:
        """Emit what a choice gained in this step."""
        choice = work.choice
        if choice.suspect:
            self._scheduler.acquit(choice)
        if choice.finished:
            self._remove([choice])
            left = self._requests[choice.request.request_id]
            left.remove(choice)
            if not left:
                del self._requests[choice.request.request_id]

    def _remove(self, choices: Iterable[ChoiceState[Sampler]]) -> None:
        for choice in choices:
            self._scheduler.remove(choice)
            self._runner.release(choice.sampler)
            if choice.uncertain:
                self._accepted += len(choice.accepted)

    def _recover(self, batch: Sequence[Work[Sampler]], error: Exception) -> list[Output]:
        choices = [work.choice for work in batch]
        self._scheduler.start_over([c for c in choices if not c.finished])
        if len(choices) > 1:
            logger.warning(
                "a batch of %d failed, retrying each choice alone: %s", len(choices), error
            )
            return []
        request_id = choices[0].request.request_id
        logger.error(
            "request %s failed", request_id, exc_info=error, extra={"request_id": request_id}
        )
        failed = failure(error, "this request")
        self._scheduler.convict()
        self.abort_request(request_id)
        self._require_alive()
        return [(request_id, failed)]

    def _require_alive(self) -> None:
        """Run a single token; an exception ends the engine."""
        self._runner.run([Chunk(slot=0, start=0, token_ids=(0,), logits=1)])
        self._runner.clear()


def _prefilled(batch: Sequence[Work[Sampler]]) -> Iterator[Output]:
    """How far prompts are computed, for the requests that want to know."""
    for work in batch:
        choice, request = work.choice, work.choice.request
        first = not choice.index and len(choice.token_ids) == len(request.prompt_token_ids)
        if request.reports_prefill and first:
            yield request.request_id, Delta(prefill=choice.prefill)


def _rows(batch: Sequence[Work[Sampler]]) -> dict[Work[Sampler], int]:
    """The first logits row of each choice that can be sampled."""
    rows = {}
    row = 0
    for work in batch:
        if work.ends:
            rows[work] = row + work.chunk.logits - 1 - len(work.draft)
        row += work.chunk.logits
    return rows
