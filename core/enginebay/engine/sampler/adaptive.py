"""Adaptive-p: prefers tokens whose probability is near a target, and keeps the mean there.

https://github.com/ggml-org/llama.cpp/pull/17927, by the same numbers.
"""

import numpy as np

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler.temperature import Logits

_PEAK = 5.0
_SHARPNESS = 10.0
_WIDTH = 0.3
_SLOWEST = 0.99


class Adaptive:
    """The state of one choice: the decaying mean probability of its last tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._target = min(params.adaptive_target, 1.0)
        self._decay = min(params.adaptive_decay, _SLOWEST)
        self._weight = 1 / (1 - self._decay)
        self._sum = self._target * self._weight

    def logits(self, logprobs: Logits) -> Logits:
        """Weights to draw by, `[candidates]`: higher for probabilities nearer the target."""
        aim = min(max(2 * self._target - self._sum / self._weight, 0.0), 1.0)
        away: Logits = np.exp(logprobs)
        away -= aim
        np.abs(away, out=away)
        away /= _WIDTH
        weights: Logits = np.square(away)
        away += 1
        weights /= away
        weights *= -_SHARPNESS
        weights += _PEAK
        return weights

    def note(self, logprob: float) -> None:
        """Update the mean with the original probability of the drawn token."""
        self._sum = float(np.exp(logprob)) + self._decay * self._sum
        self._weight = 1 + self._decay * self._weight
