"""Tokens and logits in the form native samplers work on."""

import ctypes

import numpy as np

from backends.llamacpp import sampler_calls as calls
from backends.llamacpp.library import llama
from backends.sampling.row import Row

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """Room for up to `size` tokens. Tokens whose logit is minus infinity are none of them."""

    def __init__(self, size: int) -> None:
        self._data = np.zeros(size, _TOKEN_DATA)
        pointer = ctypes.POINTER(llama.llama_token_data)
        self._start = ctypes.cast(self._data.ctypes.data, pointer)
        self._array = llama.llama_token_data_array()
        self._address = ctypes.addressof(self._array)

    def choose(self, sampler: int, logits: Row, *, best_first: bool) -> int:
        """The token that the native sampler at this address selects; one logit must be finite.

        `best_first` for samplers that want all tokens in this order: numpy sorts much faster.
        """
        if best_first:
            token_ids = np.argsort(-logits)[: np.count_nonzero(logits > -np.inf)]
        else:
            token_ids = np.flatnonzero(logits > -np.inf)
        count = len(token_ids)
        self._data["id"][:count] = token_ids
        self._data["logit"][:count] = logits[token_ids]
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._start, count, -1, best_first
        calls.apply(sampler, self._address)
        # The sampler may have reordered the candidates, or moved their beginning.
        token: int = array.data[array.selected].id
        return token
