"""A `llama_batch` whose arrays are numpy arrays, filled by slice assignment."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.llamacpp.library import llama


class Batch:
    """Tokens for one `llama_decode`, at most `capacity`; `struct` is what is passed."""

    def __init__(self, capacity: int) -> None:
        self._token_ids = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._slots = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._slot_counts = np.ones(capacity, np.int32)
        stride = self._slots.itemsize * np.arange(capacity, dtype=np.uintp)
        self._slot_pointers = self._slots.ctypes.data + stride
        self.struct = llama.llama_batch(
            n_tokens=0,
            token=_pointer(self._token_ids, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._slot_counts, ctypes.c_int32),
            seq_id=_pointer(self._slot_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def fill(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> None:
        """Set all tokens: where each goes, and whether it is to give logits."""
        size = len(token_ids)
        if size > len(self._token_ids):
            raise ValueError(f"{size} tokens for a batch of {len(self._token_ids)}")
        self._token_ids[:size] = token_ids
        self._positions[:size] = positions
        self._slots[:size] = slots
        self._outputs[:size] = outputs
        self.struct.n_tokens = size


def _pointer(array: Any, element: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(element))
