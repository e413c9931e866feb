"""Mirostat: truncates the tail to keep the surprise of tokens at a target."""

import numpy as np
from numpy.typing import NDArray

from core.contract.sampling_params import SamplingParams

_ESTIMATED = 100  # as in the paper's code, https://github.com/basusourya/mirostat


class Mirostat:
    """The state of one choice; surprise is in bits (https://arxiv.org/abs/2007.14966)."""

    def __init__(self, params: SamplingParams) -> None:
        self._version = params.mirostat
        self._target = params.mirostat_tau
        self._rate = params.mirostat_eta
        self._most = 2 * params.mirostat_tau

    def choose(self, logprobs: NDArray[np.float64], uniform: float) -> int:
        """Draw an index into `logprobs` `[candidates]` with a number in [0, 1)."""
        kept = self._by_rank(logprobs) if self._version == 1 else self._by_surprise(logprobs)
        sums = np.cumsum(np.exp(logprobs[kept]))
        drawn = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
        place = int(kept[min(drawn, len(kept) - 1)])
        # Version 1 takes the surprise by the model, version 2 by what was left to choose from.
        whole = 1.0 if self._version == 1 else sums[-1]
        surprise = float(np.log2(whole) - logprobs[place] / np.log(2))
        self._most -= self._rate * (surprise - self._target)
        return place

    def _by_surprise(self, logprobs: NDArray[np.float64]) -> NDArray[np.intp]:
        lowest = min(-self._most * np.log(2), logprobs.max())
        return np.flatnonzero(logprobs >= lowest)

    def _by_rank(self, logprobs: NDArray[np.float64]) -> NDArray[np.intp]:
        """As many as give the target surprise, if probabilities follow Zipf's law.

        Ties with the last one are included.
        """
        count = self._count(len(logprobs), _highest(logprobs, _ESTIMATED))
        if count >= len(logprobs):
            return np.arange(len(logprobs))
        place = len(logprobs) - count
        return np.flatnonzero(logprobs >= np.partition(logprobs, place)[place])

    def _count(self, size: int, first: NDArray[np.float64]) -> int:
        if len(first) < 2:
            return 1
        ranks = np.log(np.arange(2, len(first) + 1) / np.arange(1, len(first)))
        exponent = float(np.dot(ranks, -np.diff(first)) / np.dot(ranks, ranks))
        beyond = exponent - 1
        # `beyond / (1 - size**-beyond)`, which has the limit `1 / ln(size)` at 0.
        share = (
            beyond / -np.expm1(-beyond * np.log(size)) if abs(beyond) > 1e-6 else 1 / np.log(size)
        )
        if exponent <= 0:
            return size
        bits = (np.log2(share) + self._most) / exponent
        return size if bits >= np.log2(size) else max(1, round(2**bits))


def _highest(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The highest, in order; all if there are fewer."""
    if count < len(values):
        values = np.partition(values, -count)[-count:]
    return np.sort(values)[::-1]
