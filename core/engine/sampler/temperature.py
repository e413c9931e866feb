"""Temperature in its variants, over logits `[candidates]` in any order."""

import numpy as np
from numpy.typing import NDArray

from core.contract.sampling_params import SamplingParams
from core.engine.sampler.draw import LOWEST_TEMPERATURE

Logits = NDArray[np.float64]


def smoothed(logits: Logits, factor: float) -> Logits:
    """Minus the squares of the distances to the highest, times `factor`.

    https://github.com/oobabooga/text-generation-webui/pull/5403
    """
    return np.asarray(-factor * np.square(logits.max() - logits))


def tempered(logits: Logits, params: SamplingParams) -> Logits:
    """Divided by the temperature, which follows the entropy if `dynatemp_range` says so."""
    temperature = params.temperature
    if params.dynatemp_range and not params.mirostat:
        temperature = _dynamic(logits, params)
    return np.asarray((logits - logits.max()) / max(temperature, LOWEST_TEMPERATURE))


def _dynamic(logits: Logits, params: SamplingParams) -> float:
    """https://arxiv.org/abs/2309.02772"""
    low = max(0.0, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    if len(logits) < 2:
        return high
    shares = normalized(logits)
    entropy = -np.dot(np.exp(shares), shares) / np.log(len(logits))
    return float(low + (high - low) * max(0.0, entropy) ** params.dynatemp_exponent)


def normalized(logits: Logits) -> Logits:
    """The logarithms of probabilities that sum to 1."""
    shifted = logits - logits.max()
    # What is as unlikely as that has no share in any sum, and 0 times infinity is none.
    np.maximum(shifted, -700.0, out=shifted)
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
