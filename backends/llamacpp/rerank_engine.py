"""The engine of a reranker: a cross-encoder, which reads a query and a document together."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isfinite

from backends.llamacpp.embedding import EmbeddingContext, Vector
from backends.llamacpp.pairs import PairTokenizer
from backends.llamacpp.pooling_engine import PoolingEngine
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import ModelInfo, ServingError


class RerankEngine(PoolingEngine):
    """Says how probable it is that a document answers a query.

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
        raise ServingError("the model computed no finite number for a document")
    return first if len(outputs) > 1 else exp(min(first, 0)) / (1 + exp(-abs(first)))
