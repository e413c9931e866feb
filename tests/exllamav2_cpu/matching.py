"""Comparing texts and token ids: `exllamav2_ext/cpp/generator.cpp` and `ext_cache.cpp`."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# Anything with the buffer protocol; exllamav2 passes arrays.
Packed = bytes | bytearray | NDArray[np.generic]
NO_MATCH, PARTIAL_MATCH = -1, -2


def partial_strings_match(match: Packed, offsets: Packed, strings: Packed) -> int:
    """Where the first of `strings` that occurs in `match` begins; -2 where `match` ends with the
    beginning of one; else -1.

    Texts are UTF-32, little endian; `offsets` are those of the strings in bytes.
    """
    text = _text(match)
    packed = bytes(strings)
    for start, end in pairwise(np.frombuffer(offsets, np.uint32).tolist()):
        string = _text(packed[start:end])
        if (index := text.find(string)) >= 0:
            return index
        longest = min(len(text), len(string) - 1)
        if any(text.endswith(string[:length]) for length in range(longest, 0, -1)):
            return PARTIAL_MATCH
    return NO_MATCH


def count_match(a: Tensor, b: Tensor, max_a: int) -> int:
    """How many of the first `max_a` token ids of two `[1, n]` tensors are the same."""
    length = min(max_a, b.shape[1])
    differing = np.flatnonzero(a[0, :length].numpy() != b[0, :length].numpy())
    return int(differing[0]) if len(differing) else length


def _text(utf32: Packed) -> str:
    return bytes(utf32).decode("utf-32-le", "surrogatepass")
