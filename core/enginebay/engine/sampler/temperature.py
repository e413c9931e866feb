"""Temperature in its variants, over logits `[candidates]` in any order."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler.draw import LOWEST_TEMPERATURE

_BLOCK = 16_384

Logits = NDArray[np.float32] | NDArray[np.float64]


def smoothed(logits: Logits, factor: float) -> Logits:
    """Minus the squares of the distances to the highest, times `factor`.

    https://github.com/oobabooga/text-generation-webui/pull/5403
    """
    return np.asarray(-factor * np.square(logits.max() - logits))


def tempered(logits: Logits, params: SamplingParams) -> Logits:
    """Divided, in place, by the temperature, which may follow the entropy (`dynatemp_range`)."""
    temperature = params.temperature
    if params.dynatemp_range and not params.mirostat:
        temperature = _dynamic(logits, params)
    logits -= logits.max()
    logits /= max(temperature, LOWEST_TEMPERATURE)
    return logits


def _dynamic(logits: Logits, params: SamplingParams) -> float:
    """https://arxiv.org/abs/2309.02772"""
    low = max(0.0, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    if len(logits) < 2:
        return high
    entropy = -mean(normalized(logits)) / np.log(len(logits))
    return float(low + (high - low) * max(0.0, entropy) ** params.dynatemp_exponent)


def normalized(logits: Logits) -> Logits:
    """The logarithms of probabilities that sum to 1."""
    shifted: Logits = logits - logits.max()
    # What is as unlikely as that has no share in any sum, and 0 times infinity is none.
    np.maximum(shifted, -700.0, out=shifted)
    shifted -= np.log(sum(np.exp(block).sum(dtype=np.float64) for block in _blocks(shifted)))
    return shifted


def mean(logprobs: Logits) -> float:
    """The mean of logprobs, by their probabilities."""
    products = ((np.exp(block) * block).sum(dtype=np.float64) for block in _blocks(logprobs))
    return float(sum(products))


def _blocks(values: Logits) -> Iterator[Logits]:
    """Parts of a row: memory for another whole row costs more than what is computed in it."""
    return (values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK))
