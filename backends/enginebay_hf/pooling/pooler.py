"""A model of transformers as a `Pooler`: padded batches on its device."""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from enginebay_hf.pooling.heads import Batch, Head


class HFPooler:
    """Runs texts on the thread that made it.

    `separator`: the token that ends the first segment of a pair, for models that have segments.
    `adapted` makes what has to be open while the model runs.
    """

    def __init__(
        self,
        head: Head,
        device: torch.device,
        *,
        pad: int,
        separator: int | None = None,
        adapted: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._head: Head | None = head
        self._device = device
        self._pad = pad
        self._separator = separator
        self._adapted = adapted

    @torch.inference_mode()
    def run(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Numbers `[texts, outputs]`."""
        assert self._head is not None
        with self._adapted():
            rows = self._head(self._batch(texts))
        numbers: NDArray[np.float32] = rows.float().cpu().numpy()
        return numbers

    def close(self) -> None:
        """Free the model."""
        self._head = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _batch(self, texts: Sequence[Sequence[int]]) -> Batch:
        longest = max(map(len, texts))
        padded = [[*text, *[self._pad] * (longest - len(text))] for text in texts]
        ids = torch.tensor(padded, device=self._device)
        lengths = torch.tensor(list(map(len, texts)), device=self._device)
        mask = (torch.arange(longest, device=self._device) < lengths[:, None]).long()
        return Batch(ids, mask, lengths, self._types(ids, mask))

    def _types(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """1 for every token behind the first separator, which no text of a pair can spell."""
        if self._separator is None:
            return None
        separators = (ids == self._separator).long().cumsum(1)
        before = separators - (ids == self._separator).long()
        return (before > 0).long() * mask
