"""The engine of an embedding model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from backends.llamacpp.embedding import EmbeddingContext, Vector
from backends.llamacpp.pooling_engine import PoolingEngine
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import ModelInfo, ServingError


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
        raise ServingError("the model computed no finite numbers for an input")
    numbers: list[float] = (vector / length if length else vector).tolist()
    return numbers
