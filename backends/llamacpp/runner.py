"""Runs a GGUF model for the shared scheduler."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backends.llamacpp.adapters import Adapters
from backends.llamacpp.context import Context, NoRoomError
from backends.llamacpp.memory import CacheSize
from backends.llamacpp.model import Model
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import Chunk, MemoryFullError, NumpyRunner, Rows, RunnerMemory


class LlamaRunner(NumpyRunner):
    """Runs chunks of many sequences in one `llama_decode`, on the thread that made it."""

    def __init__(
        self,
        model: Model,
        context: Context,
        tokenizer: Tokenizer,
        size: CacheSize,
        adapters: Adapters,
        *,
        keeps_all: bool,
    ) -> None:
        """`keeps_all`: sliding-window layers, if any, keep tokens that have left their window."""
        super().__init__(model.vocab_size, tokenizer.eos_token_ids, tokenizer.text)
        self._context = context
        self._unified = size.unified
        self._adapters = adapters
        cuts = keeps_all and context.can_cut()
        self._held = [0] * size.slots
        self.memory = RunnerMemory(
            slots=size.slots,
            tokens=context.tokens,
            cuts=cuts,
            shares=size.unified,
            one_adapter=True,
            neighbours=not size.unified,
        )

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        if any(chunk.start != self._held[chunk.slot] for chunk in chunks):
            raise ValueError("a chunk does not continue where its slot ends")
        self._set_adapter({chunk.adapter for chunk in chunks})
        # Caches of their own are computed together only for ascending slots without gaps.
        order = range(len(chunks))
        placed = order if self._unified else sorted(order, key=lambda i: chunks[i].slot)
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[bool] = []
        for chunk in (chunks[i] for i in placed):
            count = len(chunk.token_ids)
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + count)
            slots += [chunk.slot] * count
            outputs += [False] * (count - chunk.logits) + [True] * chunk.logits
        try:
            rows = self._context.run(token_ids, positions, slots, outputs)
        except NoRoomError as error:
            self._take_back(chunks)
            raise MemoryFullError("the KV cache is full") from error
        for chunk in chunks:
            self._held[chunk.slot] += len(chunk.token_ids)
        return _in_order(rows, chunks, placed)

    def copy(self, source: int, target: int, tokens: int) -> None:
        if self._unified and self.memory.cuts:
            self._context.copy(source, target, tokens)
        else:
            self._context.copy(source, target)
            if tokens < self._held[source]:
                self._remove(target, tokens)
        self._held[target] = tokens

    def cut(self, slot: int, tokens: int) -> None:
        self._remove(slot, tokens)
        self._held[slot] = tokens

    def clear(self) -> None:
        self._context.clear()
        self._held = [0] * len(self._held)

    def close(self) -> None:
        self._context.close()

    def _remove(self, slot: int, start: int) -> None:
        if not self._context.remove(slot, start):
            raise RuntimeError(f"the model cannot remove the tokens of a sequence from {start} on")

    def _take_back(self, chunks: Sequence[Chunk]) -> None:
        """A run that did not fit may have run its first tokens."""
        for chunk in chunks:
            self._remove(chunk.slot, chunk.start)

    def _set_adapter(self, names: set[str | None]) -> None:
        if len(names) > 1:
            raise ValueError("llama.cpp runs one adapter at a time")
        self._adapters.apply(names.pop(), self._context)


def _in_order(rows: NDArray[np.float32], chunks: Sequence[Chunk], placed: Sequence[int]) -> Rows:
    """The rows chunk by chunk, if they were computed as `placed`."""
    if list(placed) == list(range(len(chunks))):
        return rows
    starts = [0] * len(chunks)
    row = 0
    for i in placed:
        starts[i] = row
        row += chunks[i].logits
    return [
        rows[start + k]
        for start, chunk in zip(starts, chunks, strict=True)
        for k in range(chunk.logits)
    ]
