"""Mirostat: cuts the tail where it keeps the surprise of tokens at a target."""

import numpy as np
from numpy.typing import NDArray

from enginebay import SamplingParams

_ESTIMATED = 100  # as in the paper's code, https://github.com/basusourya/mirostat


class Mirostat:
    """The state of one choice; surprise is in bits (https://arxiv.org/abs/2007.14966)."""

    def __init__(self, params: SamplingParams) -> None:
        self._version = params.mirostat
        self._target = params.mirostat_tau
        self._rate = params.mirostat_eta
        self._most = 2 * params.mirostat_tau

    def choose(self, logprobs: NDArray[np.float64], uniform: float) -> int:
        """A place in `logprobs`, which are sorted, by a number from 0 to below 1."""
        count = self._by_rank(logprobs) if self._version == 1 else self._by_surprise(logprobs)
        weights = np.exp(logprobs[:count])
        sums = np.cumsum(weights)
        place = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), count - 1)
        # Version 1 takes the surprise by the model, version 2 by what was left to choose from.
        whole = 1.0 if self._version == 1 else sums[-1]
        surprise = float(np.log2(whole) - logprobs[place] / np.log(2))
        self._most -= self._rate * (surprise - self._target)
        return place

    def _by_surprise(self, logprobs: NDArray[np.float64]) -> int:
        return max(1, int(np.count_nonzero(-logprobs / np.log(2) <= self._most)))

    def _by_rank(self, logprobs: NDArray[np.float64]) -> int:
        """How many tokens make that surprise, if their probabilities follow Zipf's law."""
        first = logprobs[:_ESTIMATED]
        if len(first) < 2:
            return 1
        ranks = np.log(np.arange(2, len(first) + 1) / np.arange(1, len(first)))
        exponent = float(np.dot(ranks, -np.diff(first)) / np.dot(ranks, ranks))
        size = len(logprobs)
        beyond = exponent - 1
        # `beyond / (1 - size**-beyond)`, which has the limit `1 / ln(size)` at 0.
        share = (
            beyond / -np.expm1(-beyond * np.log(size)) if abs(beyond) > 1e-6 else 1 / np.log(size)
        )
        if exponent <= 0:
            return size
        bits = (np.log2(share) + self._most) / exponent
        return size if bits >= np.log2(size) else max(1, round(2**bits))
