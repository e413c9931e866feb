"""The engine: the library's dynamic generator, driven step by step on the engine thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

import torch

from enginebay import (
    BatchLimits,
    Delta,
    Detokenizer,
    EngineStats,
    GenerationRequest,
    GrammarCompiler,
    InvalidRequestError,
    Media,
    MediaPrompt,
    Modality,
    ModelInfo,
    ReasoningBudget,
    RowSampler,
    ServingError,
    TextEngine,
    failure,
)
from enginebay_checkpoint.media_tokens import MediaTokenizer
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_exllamav2.choice import LibraryChoice
from enginebay_exllamav2.healing import Healing, TokenPrefixes
from enginebay_exllamav2.info import UNSUPPORTED, UNSUPPORTED_WITH_DRAFTS
from enginebay_exllamav2.job import Job
from enginebay_exllamav2.library import generator as library
from enginebay_exllamav2.masks import MaskFilter
from enginebay_exllamav2.pages import Pages
from enginebay_exllamav2.scheduler import Model, Scheduler
from enginebay_exllamav2.vision.placing import Placing

logger = logging.getLogger(__name__)

Output = tuple[str, Delta | ServingError]


class ExLlamaV2Engine(TextEngine):
    """Batches requests to one model of ExLlamaV2.

    As with `BatchingEngine`, a failure is not blamed on a request until it is isolated:
    a new generator is made over the same model and cache, and the choices that ran are computed
    again, each alone at first. The one that fails alone gets the error. If not even a single token
    can be run any more, the engine is dead.
    """

    _tokenizer: Tokenizer

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        info: ModelInfo,
        limits: BatchLimits,
        *,
        eos_token_ids: frozenset[int],
        compiler: GrammarCompiler | None = None,
    ) -> None:
        """`compiler`: None if the vocabulary cannot be constrained."""
        unsupported = info.unsupported | UNSUPPORTED
        if model.draft_tokens:
            unsupported |= UNSUPPORTED_WITH_DRAFTS
        info = replace(
            info,
            # A draft goes beyond the last token, and must have its place in the cache, too.
            context_length=min(info.context_length, model.cache_tokens - model.draft_tokens),
            unsupported=unsupported,
            max_batch_size=limits.max_batch_size,
        )
        super().__init__(
            tokenizer,
            info,
            eos_token_ids=eos_token_ids,
            compiler=compiler,
            adapters=model.adapters,
        )
        self._model = model
        self._usable = min(info.vocab_size, model.tokenizer.get_vocab_size())
        self._filling = Lock()
        self._prefixes: TokenPrefixes | None = None
        self._requests: dict[str, list[LibraryChoice]] = {}
        self._gained: list[tuple[LibraryChoice, Delta | ServingError]] = []
        self._cache_queries = 0
        self._cache_hits = 0
        self._media: MediaTokenizer | None = None
        if pictures := model.pictures:
            row_texts: dict[Modality, str] = {"image": pictures.family.row}
            self._media = MediaTokenizer(tokenizer, pictures.prepare, row_texts)
        placing = Placing(model.pictures, lambda *failed: self._gained.append(failed))
        self._scheduler = Scheduler(model, limits, self._new_job, placing)

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        if self._media is None:
            return super().tokenize_media(pieces, add_special_tokens=add_special_tokens)
        return self._media.tokenize(pieces, add_special_tokens=add_special_tokens)

    def add_request(self, request: GenerationRequest) -> None:
        self._limits.check(request)
        self._check(request)
        choices = [self._new_choice(request, index) for index in range(request.n)]
        self._requests[request.request_id] = choices
        for choice in choices:
            self._scheduler.add(choice)

    def step(self) -> list[Output]:
        try:
            if self._scheduler.schedule():
                self._scheduler.generator.iterate()
            elif pictures := self._model.pictures:
                pictures.wait()
        except Exception as error:
            return self._take_gained() + self._recover(error)
        return self._take_gained()

    def abort_request(self, request_id: str) -> None:
        for choice in self._requests.pop(request_id, ()):
            self._scheduler.remove(choice)

    def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        decode = self._tokenizer.decode
        choices = self._requests.get(request_id, ())
        return sum(choice.end_reasoning(budget, Detokenizer(decode)) for choice in choices)

    def unload_adapter(self, name: str) -> None:
        self._scheduler.leave_adapter(name)
        super().unload_adapter(name)

    def stats(self) -> EngineStats:
        return replace(
            self._scheduler.stats,
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
        )

    def close(self) -> None:
        for request_id in list(self._requests):
            self.abort_request(request_id)
        self._scheduler.close()
        del self._scheduler
        self._adapters = None
        self._model.close()

    def _check(self, request: GenerationRequest) -> None:
        params = request.sampling
        if self._banned_strings(request) and params.constraint is not None:
            raise InvalidRequestError(
                "banned_strings cannot be combined with a grammar (a schema, a pattern, tools); "
                "omit one of the two",
                param="banned_strings",
            )
        if min(params.allowed_token_ids, default=0) >= self._usable:
            raise InvalidRequestError(
                f"allowed_token_ids has none of the {self._usable} tokens of the tokenizer",
                param="allowed_token_ids",
            )

    def _new_choice(self, request: GenerationRequest, index: int) -> LibraryChoice:
        params = request.sampling
        healing = self._healing(request)
        completion = self._new_completion(
            request,
            index,
            healing.detokenizer(self._tokenizer)
            if healing
            else Detokenizer(self._tokenizer.decode),
        )
        masks = None
        if completion.constraint:
            compiler = self._require_compiler()
            masks = MaskFilter(self._model, compiler, completion.constraint, self._filling)
        sampler = RowSampler(
            params,
            request.prompt_token_ids,
            index,
            end_token_ids=self._end_token_ids(request),
            vocab_size=self._usable,
            token_text=self._tokenizer.token_bytes,
        )
        return LibraryChoice(
            request,
            index,
            self._scheduler.next_arrival(),
            sampler,
            completion,
            token_text=self._tokenizer.token_bytes,
            filter=masks,
            healing=healing,
        )

    def _healing(self, request: GenerationRequest) -> Healing | None:
        """How to heal the prompt, if the request wants it and it can be.

        Not where the completion begins with forced tokens: a constraint, or the end of reasoning.
        """
        params = request.sampling
        *before, last = request.prompt_token_ids
        if not params.token_healing or params.constraint or params.reasoning_budget or not before:
            return None
        if self._prefixes is None:
            self._prefixes = TokenPrefixes(self._model.tokenizer.get_id_to_piece_list())
        mask = self._prefixes.mask(last, self._banned_strings(request))
        return None if mask is None else Healing(mask, request.prompt_token_ids)

    def _new_job(self, choice: LibraryChoice, pages: Pages) -> Job:
        return Job(
            choice,
            pages,
            lambda *gained: self._gained.append(gained),
            vocab_size=self.info.vocab_size,
            usable=self._usable,
            banned_strings=self._banned_strings(choice.request),
            row_id=self._media.row_ids["image"] if self._media else None,
        )

    def _banned_strings(self, request: GenerationRequest) -> tuple[str, ...]:
        unsupported = "banned_strings" in self.info.unsupported
        return () if unsupported else request.sampling.banned_strings

    def _take_gained(self) -> list[Output]:
        outputs: list[Output] = []
        gained, self._gained = self._gained, []
        for choice, item in gained:
            request_id = choice.request.request_id
            if request_id not in self._requests:  # another choice of it has failed
                continue
            outputs.append((request_id, item))
            if isinstance(item, ServingError):
                self.abort_request(request_id)
                continue
            self._cache_queries += item.cached_tokens + item.prefill_tokens
            self._cache_hits += item.cached_tokens
            if choice.suspect:
                self._scheduler.acquit(choice)
            if item.finish_reason:
                self._scheduler.remove(choice)
                self._requests[request_id].remove(choice)
                if not self._requests[request_id]:
                    del self._requests[request_id]
        return outputs

    def _recover(self, error: Exception) -> list[Output]:
        choices = self._scheduler.start_over()
        if len(choices) > 1:
            logger.warning(
                "a batch of %d failed, retrying each request alone: %s", len(choices), error
            )
            return []
        if not choices:
            raise error
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
        """Run a single token; an error ends the engine."""
        generator = self._scheduler.generator
        generator.enqueue(
            library.ExLlamaV2DynamicJob(
                input_ids=torch.tensor([[0]]), max_new_tokens=1 + generator.num_draft_tokens
            )
        )
        while generator.num_remaining_jobs():
            generator.iterate()
