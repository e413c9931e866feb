"""Mirostat: truncates the tail to keep the surprise of tokens at a target."""

from typing import cast

import numpy as np

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler.draw import kth_highest, place
from enginebay.engine.sampler.temperature import Logits

_ESTIMATED = 100  # as in the paper's code, https://github.com/basusourya/mirostat


class Mirostat:
    """The state of one choice; surprise is in bits (https://arxiv.org/abs/2007.14966)."""

    def __init__(self, params: SamplingParams) -> None:
        self._version = params.mirostat
        self._target = params.mirostat_tau
        self._rate = params.mirostat_eta
        self._most = 2 * params.mirostat_tau

    def choose(self, logprobs: Logits, uniform: float) -> int:
        """Draw an index into `logprobs` `[candidates]` with a number in [0, 1)."""
        lowest = self._by_rank(logprobs) if self._version == 1 else self._by_surprise(logprobs)
        kept = np.flatnonzero(logprobs >= lowest)
        weights = np.exp(logprobs[kept])
        drawn = int(kept[place(weights, uniform)])
        # Version 1 takes the surprise by the model, version 2 by what was left to choose from.
        whole = 1.0 if self._version == 1 else weights.sum(dtype=np.float64)
        surprise = float(np.log2(whole) - logprobs[drawn] / np.log(2))
        self._most -= self._rate * (surprise - self._target)
        return drawn

    def _by_surprise(self, logprobs: Logits) -> float:
        """The lowest logprob that is kept."""
        return float(min(-self._most * np.log(2), logprobs.max()))

    def _by_rank(self, logprobs: Logits) -> float:
        """The same, of as many as give the target surprise if probabilities follow Zipf's law.

        Ties with the last one are included.
        """
        first = _highest(logprobs, _ESTIMATED)
        count = self._count(len(logprobs), first)
        if count >= len(logprobs):
            return -np.inf
        if count <= len(first):
            return float(first[count - 1])
        last = len(logprobs) - count
        return float(np.partition(logprobs, last)[last])

    def _count(self, size: int, first: Logits) -> int:
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


def _highest(values: Logits, count: int) -> Logits:
    """The highest, in order; all if there are fewer."""
    if count < len(values):
        values = values[values >= kth_highest(values, count)]
    return cast(Logits, np.sort(values)[::-1][:count])
