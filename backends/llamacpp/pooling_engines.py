"""Engines that compute vectors and generate nothing: embedding models and rerankers."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isfinite

import numpy as np

from backends.llamacpp.embedding import EmbeddingContext, Vector
from backends.llamacpp.pairs import PairTokenizer
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import (
    ContextLengthExceededError,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    RequestLimits,
    ServingError,
    TokenizingEngine,
)


class PoolingEngine(TokenizingEngine):
    """Computes vectors and generates nothing."""

    def __init__(self, context: EmbeddingContext, tokenizer: Tokenizer, info: ModelInfo) -> None:
        super().__init__(
            tokenizer, RequestLimits(context_length=info.context_length, vocab_size=info.vocab_size)
        )
        self.info = replace(
            info,
            max_batch_size=context.max_texts,
            generates=False,
            chat_template=None,
            chat_templates={},
        )
        self._context = context

    def vectors(self, prompts: Sequence[Sequence[int]]) -> list[Vector]:
        """A vector of each prompt. `InvalidRequestError` for one that llama.cpp cannot take."""
        for prompt in prompts:
            self._check(prompt)
        return self._context.embed(prompts)

    def add_request(self, request: GenerationRequest) -> None:
        raise InvalidRequestError("this model does not generate text", param="model")

    def step(self) -> tuple[()]:
        return ()

    def abort_request(self, request_id: str) -> None:
        pass

    def close(self) -> None:
        self._context.close()

    def _check(self, prompt: Sequence[int]) -> None:
        """Anything else could end the process."""
        if not prompt:
            raise InvalidRequestError("the input is empty", param="input")
        if len(prompt) > self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens. "
                f"However, your input has {len(prompt)} tokens. Please shorten it.",
                param="input",
            )
        self._limits.check_tokens(prompt, "input")


class EmbeddingEngine(PoolingEngine):
    """Makes embeddings. They have length 1, as OpenAI's have."""

    def __init__(self, context: EmbeddingContext, tokenizer: Tokenizer, info: ModelInfo) -> None:
        super().__init__(context, tokenizer, info)
        self.info = replace(self.info, embedding_size=context.vector_size)

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [_normalised(vector) for vector in self.vectors(prompts)]


def _normalised(vector: Vector) -> list[float]:
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise ServingError("the model computed non-finite numbers for an input")
    numbers: list[float] = (vector / length if length else vector).tolist()
    return numbers


class RerankEngine(PoolingEngine):
    """Estimates how likely it is that a document answers a query.

    A classification head with one output gives a logit, one with `yes` and `no` (Qwen3-Reranker)
    their probabilities, as llama.cpp takes the softmax there.
    """

    def __init__(
        self,
        context: EmbeddingContext,
        tokenizer: Tokenizer,
        pairs: PairTokenizer,
        info: ModelInfo,
    ) -> None:
        super().__init__(context, tokenizer, info)
        self.info = replace(self.info, reranks=True)
        self._pairs = pairs

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        return self._pairs.encode(query, document)

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return [_relevance(outputs) for outputs in self.vectors(pairs)]


def _relevance(outputs: Vector) -> float:
    first = float(outputs[0])
    if not isfinite(first):
        raise ServingError("the model computed a non-finite score for a document")
    return first if len(outputs) > 1 else exp(min(first, 0)) / (1 + exp(-abs(first)))
