"""A llama.cpp context for embeddings and reranking: the tokens of a text, pooled into a vector."""

import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from enginebay import PassLimits
from enginebay_llamacpp.batch import Batch
from enginebay_llamacpp.context import context_params, new_context
from enginebay_llamacpp.library import address, llama, logged_errors, memory_clear
from enginebay_llamacpp.memory import PoolingSizes, batch_tokens
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions

Vector = NDArray[np.float32]
Prompt = Sequence[int]

_PLAIN_SCORES = 2**22
"""Attention scores of a head for which there is memory without flash attention, which rounds to
16 bits: the embedding of a text then depends on what is run beside it, in the fourth digit."""

_PLAIN_TYPES = ("f32", "f16", "bf16")
_POOLING = {
    "mean": llama.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama.LLAMA_POOLING_TYPE_CLS,
    "last": llama.LLAMA_POOLING_TYPE_LAST,
    "rank": llama.LLAMA_POOLING_TYPE_RANK,
}


class Combine(Protocol):
    """Makes one vector of those of a text's pieces and the number of tokens in each."""

    def __call__(self, vectors: Sequence[Vector], weights: Sequence[int]) -> Vector: ...


class EmbeddingContext:
    """The `Pooler` of a GGUF file, on the thread that made it.

    With the pooling `rank` a vector is what the model's classification head says of a text.

    A text that is longer than a pass goes in pieces where the model is causal. Where each token
    sees all others it cannot, so there a pass takes the longest text.
    """

    def __init__(self, model: Model, options: LlamaCppOptions, pooling: str, *, gpu: bool) -> None:
        sizes = PoolingSizes.of(model.shape, options, gpu=gpu)
        together = batch_tokens(options, gpu=gpu)
        self._max_texts = options.max_batch_size
        self.limits = PassLimits(max_texts=self._max_texts, batch_tokens=together, pads=False)
        self._pass = sizes.together
        pointer = self._pointer = new_context(model, self._params(options, pooling, sizes))
        self._model = model
        self._free = weakref.finalize(self, llama.llama_free, pointer)
        self._free.atexit = False
        memory = llama.llama_get_memory(pointer)
        self._memory = address(memory) if memory else None
        self._batch = Batch(self._pass)
        self._combine = _COMBINE[pooling]
        self.context_length = sizes.longest if memory else min(sizes.longest, self._pass)
        size = llama.llama_model_n_cls_out if pooling == "rank" else llama.llama_model_n_embd_out
        self.vector_size: int = size(model.pointer)

    def run(self, texts: Sequence[Prompt]) -> list[Vector]:
        """A vector `[vector_size]` of each text; several texts fit into a pass."""
        if self._memory is not None:
            memory_clear(self._memory, True)
        if len(texts) > 1:
            return self._decode(texts)
        [text] = texts
        starts = range(0, len(text), self._pass)
        pieces = [text[start : start + self._pass] for start in starts]
        vectors = [
            self._decode([piece], first=start)[0]
            for start, piece in zip(starts, pieces, strict=True)
        ]
        return [self._combine(vectors, weights=list(map(len, pieces)))]

    def close(self) -> None:
        """Free the context; nothing else may be called any more."""
        self._free()

    def _params(self, options: LlamaCppOptions, pooling: str, sizes: PoolingSizes) -> Any:
        params = context_params(options)
        params.embeddings = True
        params.pooling_type = _POOLING[pooling]
        params.kv_unified = True
        params.n_seq_max = self._max_texts
        params.n_ctx = sizes.tokens
        params.n_batch = params.n_ubatch = self._pass
        plain = params.n_ctx * self._pass <= _PLAIN_SCORES
        if plain and options.flash_attention == "auto" and options.cache_type_v in _PLAIN_TYPES:
            params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return params

    def _decode(self, prompts: Sequence[Prompt], first: int = 0) -> list[Vector]:
        """One pass; the prompts go on at position `first`."""
        lengths = list(map(len, prompts))
        self._batch.fill(
            list(chain.from_iterable(prompts)),
            list(chain.from_iterable(range(first, first + length) for length in lengths)),
            np.repeat(np.arange(len(prompts)), lengths).tolist(),
            [True] * sum(lengths),
        )
        with logged_errors() as errors:
            code = llama.llama_decode(self._pointer, self._batch.struct)
        if code:
            raise RuntimeError(f"llama_decode returned {code}: {'; '.join(errors)}")
        return [self._vector(slot) for slot in range(len(prompts))]

    def _vector(self, slot: int) -> Vector:
        pointer: Any = llama.llama_get_embeddings_seq(self._pointer, slot)
        if not pointer:
            raise RuntimeError(f"llama.cpp has no embedding of sequence {slot}")
        return np.ctypeslib.as_array(pointer, (self.vector_size,)).copy()


def _mean(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    return np.average(vectors, axis=0, weights=weights).astype(np.float32)


def _first(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    return vectors[0]


def _last(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    return vectors[-1]


_COMBINE: dict[str, Combine] = {"mean": _mean, "cls": _first, "last": _last, "rank": _last}
