"""The engine of models that generate nothing."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from math import exp
from typing import Any, Protocol

import numpy as np

from enginebay.contract.engine import Later
from enginebay.contract.errors import ContextLengthExceededError, InvalidRequestError
from enginebay.contract.types import EngineStats, GenerationRequest, ModelInfo
from enginebay.engine.batching.limits import RequestLimits
from enginebay.engine.batching.tokenizing import Tokenizer, TokenizingEngine
from enginebay.engine.failures import failure
from enginebay.engine.pooling.queue import PassLimits, Place, PoolingQueue, Row, Text

logger = logging.getLogger(__name__)

_PROBE = "The quick brown fox jumps over the lazy dog."


class Pooler(Protocol):
    """A model, on the engine's thread."""

    def run(self, texts: Sequence[Text]) -> Iterable[Row]:
        """The model's numbers for each text, in one forward pass.

        None is empty or longer than the context. An exception fails a text that is alone.
        """
        ...

    def close(self) -> None:
        """Free the model; nothing is called any more."""
        ...


class PairEncoder(Protocol):
    """A query and a document as one text."""

    def encode(self, query: str, document: str) -> list[int]:
        """As `Engine.tokenize_pair`."""
        ...


def sigmoid(row: Row) -> float:
    """The probability whose logit is a row's first number."""
    logit = float(row[0])
    return exp(min(logit, 0)) / (1 + exp(-abs(logit)))


class PoolingEngine(TokenizingEngine):
    """Computes embeddings, scores or classes; `info` says which.

    Texts of all calls wait in one queue, and each step runs one pass. What a pass computed for a
    text does not depend on the others, so neither do its failures: when a pass of several raises,
    each of them is run alone. If that works for all of them, passes are smaller from then on.

    `pairs` and `relevance` (of a pair's numbers) are for models that rerank.
    """

    def __init__(
        self,
        pooler: Pooler,
        tokenizer: Tokenizer,
        info: ModelInfo,
        limits: PassLimits,
        *,
        pairs: PairEncoder | None = None,
        relevance: Callable[[Row], float] = sigmoid,
    ) -> None:
        super().__init__(
            tokenizer, RequestLimits(context_length=info.context_length, vocab_size=info.vocab_size)
        )
        self.info = info
        self._pooler = pooler
        self._queue = PoolingQueue(limits)
        self._pairs = pairs
        self._relevance = relevance
        self._alone: list[Place] = []
        self._failed_together: list[int] = []  # lengths, until one of these texts fails alone
        self._running = 0

    def problem(self) -> str | None:
        """Run a short text; why the model cannot be used, None if it can."""
        token_ids = self._tokenizer.encode(_PROBE, add_special_tokens=True)
        try:
            [row] = self._pooler.run([token_ids[: self.info.context_length]])
        except Exception as error:
            return f"it cannot run a short text: {type(error).__name__}: {error}"
        if not np.isfinite(row).all():
            return (
                "its numbers for a short text are not finite: they overflow in its number format, "
                "so load it as float32, or its weights hold NaN, so download it again"
            )
        return None

    def embed(self, prompts: Sequence[Text]) -> Later[list[list[float]]]:
        if self.info.embedding_size is None:
            return super().embed(prompts)
        return self._add(prompts, _numbers)

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        if self._pairs is None:
            return super().tokenize_pair(query, document)
        return self._pairs.encode(query, document)

    def rerank(self, pairs: Sequence[Text]) -> Later[list[float]]:
        if not self.info.reranks:
            return super().rerank(pairs)
        return self._add(pairs, self._relevance)

    def classify(self, prompts: Sequence[Text]) -> Later[list[list[float]]]:
        if not self.info.labels:
            return super().classify(prompts)
        return self._add(prompts, _numbers)

    def add_request(self, request: GenerationRequest) -> None:
        raise InvalidRequestError("this model does not generate text", param="model")

    def abort_request(self, request_id: str) -> None:
        pass

    def step(self) -> tuple[()]:
        places = self._next()
        self._running = len(places)
        if not places:
            return ()
        try:
            rows = self._pooler.run([call.text(index) for call, index in places])
        except Exception as error:
            self._failed(places, error)
            return ()
        for (call, index), row in zip(places, rows, strict=True):
            if not call.future.done():
                call.put(index, row)
        if self._failed_together and not self._alone:
            self._queue.limits = self._queue.limits.halved(self._failed_together)
            self._failed_together = []
            tokens = self._queue.limits.batch_tokens
            logger.warning("limiting passes of several texts to %d tokens from now on", tokens)
        return ()

    def stats(self) -> EngineStats:
        waiting = len(self._queue)
        running = min(self._running, waiting)
        return EngineStats(running=running, waiting=waiting - running)

    def close(self) -> None:
        self._pooler.close()

    def _add(self, texts: Sequence[Text], convert: Callable[[Row], Any]) -> Future[list[Any]]:
        for text in texts:
            self._check(text)
        return self._queue.add(texts, convert)

    def _check(self, text: Text) -> None:
        if not text:
            raise InvalidRequestError("the input is empty", param="input")
        if len(text) > self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens. "
                f"However, your input has {len(text)} tokens. Please shorten it.",
                param="input",
            )
        self._limits.check_tokens(text, "input")

    def _next(self) -> list[Place]:
        """The texts of the next pass: one of a pass that failed, else those whose turn it is."""
        while self._alone:
            place = self._alone.pop()
            if not place[0].future.done():
                return [place]
        return self._queue.take()

    def _failed(self, places: list[Place], error: Exception) -> None:
        """Run the texts of a failed pass alone; one that was alone fails its call.

        Raises when nothing else can be run either.
        """
        lengths = [len(call.text(index)) for call, index in places]
        if len(places) > 1:
            logger.warning("a pass of %d texts failed, running each alone: %s", len(places), error)
            self._alone, self._failed_together = places, lengths
            return
        logger.error("a text of %d tokens failed", lengths[0], exc_info=error)
        self._failed_together = []
        [(call, index)] = places
        failed = failure(error, f"text number {index + 1} of {len(call)}")
        if problem := self.problem():
            raise RuntimeError(problem) from error
        call.future.set_exception(failed)


def _numbers(row: Row) -> list[float]:
    numbers: list[float] = row.tolist()
    return numbers
