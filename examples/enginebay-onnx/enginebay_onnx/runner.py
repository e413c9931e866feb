"""Runs the model for Enginebay's batching: chunks of many sequences, each in its memory row."""

from collections.abc import Iterator, Sequence

import numpy as np

from enginebay import Chunk, NumpyRunner, Row, Rows, RunnerMemory
from enginebay_onnx.folder import Folder
from enginebay_onnx.model import Model


class OnnxRunner(NumpyRunner):
    """Slots are rows of the model's memory.

    Nothing is written where a slot is cut or cleared: what is after a sequence's end is not read,
    and the next tokens are written over it.
    """

    def __init__(self, model: Model, folder: Folder, rows: int, context_length: int) -> None:
        super().__init__(model.vocab_size, folder.end_token_ids, folder.token_text)
        self._model = model
        self.memory = RunnerMemory(slots=rows, tokens=rows * context_length, neighbours=True)

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        rows: dict[int, list[Row]] = {}
        for together in _groups(sorted(chunks, key=lambda chunk: chunk.slot)):
            tokens = np.array([chunk.token_ids for chunk in together])
            starts = [chunk.start for chunk in together]
            logits = self._model.run(together[0].slot, tokens, starts)
            for chunk, found in zip(together, logits, strict=True):
                rows[chunk.slot] = list(found[len(found) - chunk.logits :])
        return [row for chunk in chunks for row in rows[chunk.slot]]

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._model.copy(source, target, tokens)

    def cut(self, slot: int, tokens: int) -> None:
        pass

    def clear(self) -> None:
        pass


def _groups(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """What the network runs at once: one token each in neighbouring rows, or one chunk."""
    group: list[Chunk] = []
    for chunk in chunks:
        last = group[-1] if group else None
        alone = len(chunk.token_ids) > 1 or (last and len(last.token_ids) > 1)
        if last and (alone or chunk.slot != last.slot + 1):
            yield group
            group = []
        group.append(chunk)
    yield group
