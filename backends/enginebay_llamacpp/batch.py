"""`llama_batch`es whose arrays are numpy arrays, filled by slice assignment."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebay_llamacpp.library import llama


class _Places:
    """What both kinds of batch have: of each token its slot, and whether it gives logits."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._slot_counts = np.ones(capacity, np.int32)
        stride = self._slots.itemsize * np.arange(capacity, dtype=np.uintp)
        self._slot_pointers = self._slots.ctypes.data + stride
        self.struct = llama.llama_batch(
            n_tokens=0,
            token=None,
            embd=None,
            pos=None,
            n_seq_id=_pointer(self._slot_counts, ctypes.c_int32),
            seq_id=_pointer(self._slot_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def _fill(self, size: int, slots: Sequence[int], outputs: Sequence[bool]) -> None:
        if size > self._capacity:
            raise ValueError(f"{size} tokens for a batch of {self._capacity}")
        self._slots[:size] = slots
        self._outputs[:size] = outputs
        self.struct.n_tokens = size


class Batch(_Places):
    """Tokens for one `llama_decode`, at most `capacity`; `struct` is what is passed."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._token_ids = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self.struct.token = _pointer(self._token_ids, ctypes.c_int32)
        self.struct.pos = _pointer(self._positions, ctypes.c_int32)

    def fill(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> None:
        """Set all tokens: where each goes, and whether it is to give logits."""
        size = len(token_ids)
        self._fill(size, slots, outputs)
        self._token_ids[:size] = token_ids
        self._positions[:size] = positions


class RowBatch(_Places):
    """Rows in the place of embeddings for one `llama_decode`, which takes no tokens beside them."""

    def fill(
        self,
        rows: NDArray[np.float32],
        positions: NDArray[np.int32],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> None:
        """Set all rows, `[tokens, size]`; `positions` are `[sections, tokens]`."""
        self._fill(len(rows), slots, outputs)
        # The library reads these where they are, sections one behind another.
        self._rows = np.ascontiguousarray(rows, np.float32)
        self._positions = np.ascontiguousarray(positions, np.int32)
        self.struct.embd = _pointer(self._rows, ctypes.c_float)
        self.struct.pos = _pointer(self._positions, ctypes.c_int32)


def _pointer(array: Any, element: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(element))
