"""Engines that generate nothing: embedding models and rerankers."""

from dataclasses import replace

from enginebay import ModelInfo, PoolingEngine, sigmoid
from enginebay_llamacpp.embedding import EmbeddingContext, Vector
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.pairs import PairTokenizer
from enginebay_llamacpp.tokenizer import Tokenizer


def pooling_engine(
    context: EmbeddingContext,
    tokenizer: Tokenizer,
    info: ModelInfo,
    options: LlamaCppOptions,
    pairs: PairTokenizer | None,
) -> PoolingEngine:
    """An engine that reranks if it has `pairs`, else one that embeds."""
    info = replace(
        info,
        max_batch_size=options.max_batch_size,
        generates=False,
        chat_template=None,
        chat_templates={},
        embedding_size=None if pairs else context.vector_size,
        shorter_embeddings=options.shorter_embeddings,
        reranks=pairs is not None,
    )
    return PoolingEngine(
        context, tokenizer, info, context.limits, pairs=pairs, relevance=_relevance
    )


def _relevance(outputs: Vector) -> float:
    """How likely it is that a document answers a query.

    A classification head with one output gives a logit, one with `yes` and `no` (Qwen3-Reranker)
    their probabilities, as llama.cpp takes the softmax there.
    """
    return float(outputs[0]) if len(outputs) > 1 else sigmoid(outputs)
