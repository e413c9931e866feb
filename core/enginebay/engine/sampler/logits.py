"""Types of logits rows and masks, and applying a mask."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = NDArray[np.float32]
"""The logits of one position, `[vocabulary]`."""

Mask: TypeAlias = NDArray[np.int32]
"""The tokens a constraint allows: a row of `Masks`, `[words]`, for `allowed_tokens`."""

_LOWEST = np.finfo(np.float32).min
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_CAPS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))
"""For each byte value of a mask, the upper bounds of its eight tokens' logits."""


def masked(logits: Row, row: Row, mask: Mask) -> Row:
    """Apply the mask to `logits`, the result of the sampling params applied to `row`.

    The mask takes precedence over bans: if all of its tokens are banned, the model's own logits are
    used. NaN stays NaN.
    """
    caps = _CAPS.take(mask.view(np.uint8), axis=0).ravel()[: len(row)]
    left = np.minimum(logits, caps)
    if left.max() == -np.inf:
        left = np.minimum(np.maximum(row, _LOWEST), caps)
    return left
