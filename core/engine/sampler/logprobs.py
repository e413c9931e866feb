"""Logprobs of sampled tokens, from the model's own distribution."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from core.contract.types import TokenLogprob, TopLogprob


class RowLogprobs:
    """Of one row of logits, read before anything changes it.

    `top` is how many of the likeliest tokens are wanted; ties go to the lower id.
    """

    def __init__(self, logits: NDArray[np.float32], top: int) -> None:
        shifted = logits.astype(np.float64)
        shifted -= shifted.max()
        shifted -= np.log(np.exp(shifted).sum())
        self._logprobs = shifted
        self._top = _likeliest(shifted, min(top, len(shifted)))

    def of(
        self, token_id: int, text: Callable[[int], str], *, ranked: bool = False
    ) -> TokenLogprob:
        """The entry of a token that was sampled, or that a prompt has; `ranked`: with its rank."""
        return TokenLogprob(
            token_id,
            text(token_id),
            float(self._logprobs[token_id]),
            tuple(TopLogprob(i, text(i), float(self._logprobs[i])) for i in self._top),
            self._rank(token_id) if ranked else None,
        )

    def _rank(self, token_id: int) -> int:
        own = self._logprobs[token_id]
        equal = np.count_nonzero(self._logprobs[:token_id] == own)
        return 1 + int(np.count_nonzero(self._logprobs > own) + equal)


def _likeliest(logprobs: NDArray[np.float64], count: int) -> list[int]:
    if not count:
        return []
    least = np.partition(logprobs, -count)[-count]
    candidates = np.flatnonzero(logprobs >= least)
    order = np.argsort(-logprobs[candidates], kind="stable")
    token_ids: list[int] = candidates[order[:count]].tolist()
    return token_ids
