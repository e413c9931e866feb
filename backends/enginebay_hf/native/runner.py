"""Runs models with transformers' own cache, where attention cannot be replaced."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import Cache

from enginebay import Chunk, RunnerMemory
from enginebay_hf.lora import Adapters
from enginebay_hf.media.runner import MediaRunner
from enginebay_hf.native.forward import Batch, Forward
from enginebay_hf.sampling_runner import Vocabulary


class NativeRunner(MediaRunner):
    """Prompts run alone, each whole; then their rows are decoded together.

    A row that a run leaves out waits in a cache of its own, so that it does not move on.
    """

    def __init__(
        self,
        forward: Forward,
        vocabulary: Vocabulary,
        *,
        slots: int,
        tokens: int,
        adapters: Adapters | None = None,
    ) -> None:
        super().__init__(vocabulary, forward.media)
        self.memory = RunnerMemory(slots=slots, tokens=tokens, cuts=False, chunks=False)
        self._forward = forward
        self._adapters = adapters
        self._batch = Batch()
        self._order: list[int] = []  # the slots of the batch's rows
        self._apart: dict[int, tuple[Cache, int]] = {}  # slots that are not in the batch

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        decoding = [chunk for chunk in chunks if chunk.start]
        rows = dict(zip((chunk.slot for chunk in decoding), self._decode(decoding), strict=True))
        for chunk in chunks:
            if not chunk.start:
                rows[chunk.slot] = self._prefill(chunk)
        return torch.stack([rows[chunk.slot] for chunk in chunks])

    def copy(self, source: int, target: int, tokens: int) -> None:
        if source in self._order:
            self._apart[target] = self._batch.copy(self._order.index(source))
        else:
            alone = Batch()
            alone.join(*self._apart[source])
            self._apart[target] = alone.copy(0)

    def cut(self, slot: int, tokens: int) -> None:
        assert tokens == 0
        self._apart.pop(slot, None)
        self._keep([other for other in self._order if other != slot])

    def clear(self) -> None:
        super().clear()
        self._batch, self._order, self._apart = Batch(), [], {}

    def _prefill(self, chunk: Chunk) -> Tensor:
        with self._adapted([chunk.adapter]):
            if self.media:
                logits, cache = self._forward.prefill_media(chunk)
            else:
                logits, cache = self._forward.prefill(chunk.token_ids)
        self._apart[chunk.slot] = cache, len(chunk.token_ids)
        return logits[0]

    def _decode(self, chunks: Sequence[Chunk]) -> Sequence[Tensor]:
        if not chunks:
            return ()
        by_slot = {chunk.slot: chunk for chunk in chunks}
        self._make_batch(by_slot)
        inputs = [by_slot[slot] for slot in self._order]
        with self._adapted([chunk.adapter for chunk in inputs]):
            token_ids = [chunk.token_ids[0] for chunk in inputs]
            with_media = inputs if self.media else ()
            logits = self._forward.decode(self._batch, token_ids, with_media)
        return [logits[self._order.index(chunk.slot)] for chunk in chunks]

    def _make_batch(self, wanted: Sequence[int] | dict[int, Chunk]) -> None:
        """Put these slots into the batch, and the others into caches of their own."""
        for row, slot in enumerate(self._order):
            if slot not in wanted:
                self._apart[slot] = self._batch.copy(row)
        self._keep([slot for slot in self._order if slot in wanted])
        for slot in wanted:
            if slot not in self._order:
                self._batch.join(*self._apart.pop(slot))
                self._order.append(slot)

    def _keep(self, slots: list[int]) -> None:
        self._batch.keep([row for row, slot in enumerate(self._order) if slot in slots])
        self._order = slots

    def _adapted(self, adapters: Sequence[str | None]) -> AbstractContextManager[None]:
        return self._adapters.applied(adapters) if self._adapters else nullcontext()
