"""Saved sequences, in a form that unified and separate caches both take.

llama.cpp 0.3.36 writes the number of a cache's streams, then for each stream its number of cells
and their data: a unified cache has one stream, separate ones have one for each sequence. It takes a
state only with its own number of streams.
"""

import struct

import numpy as np
from numpy.typing import NDArray

State = NDArray[np.uint8]

_HEADER_BYTES = 8  # before the number of streams
_COUNT_BYTES = 4
_SHAPE = struct.Struct("<II")
SHAPE_BYTES = _SHAPE.size
"""What `write_shape` needs behind a state."""


def write_shape(state: State, streams: int, slot: int) -> None:
    """Record at the end of a buffer that its state is one of a slot in a cache with `streams`."""
    state[-SHAPE_BYTES:] = np.frombuffer(_SHAPE.pack(streams, slot), np.uint8)


def for_streams(state: State, streams: int) -> State:
    """A saved state as a cache with so many streams takes it. `ValueError` if it is none.

    The cache must be one of attention to all tokens: others consist of several parts.
    """
    if len(state) < _HEADER_BYTES + SHAPE_BYTES:
        raise ValueError("it is too short")
    body = state[:-SHAPE_BYTES]
    had, slot = _SHAPE.unpack(state[-SHAPE_BYTES:].tobytes())
    if had == streams:
        return body
    before = slot if had > 1 else 0  # streams without cells, of which only the number is there
    start = _HEADER_BYTES + _COUNT_BYTES * (1 + before)
    end = len(body) - _COUNT_BYTES * (had - 1 - before)
    count = np.array([streams], "<u4").view(np.uint8)
    empty = np.zeros(_COUNT_BYTES * (streams - 1), np.uint8)
    return np.concatenate([body[:_HEADER_BYTES], count, body[start:end], empty])
