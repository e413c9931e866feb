"""Temperature, top_k, top_p, min_p and one draw, in numpy.

llama.cpp's samplers sort the whole vocabulary where top_p comes without top_k, the default of most
clients; here only what top_p can reach is sorted.
"""

import numpy as np
from numpy.typing import NDArray

from backends.llamacpp.candidates import Row
from enginebay import SamplingParams

LOWEST_TEMPERATURE = 1e-6
_TINY = np.finfo(np.float32).tiny
_FLOORS = (1e-2, 1e-4, 0.0)


def draw(logits: Row, params: SamplingParams, uniform: float) -> int:
    """A token, by a number from 0 to below 1. The highest logit must be 0.

    By the inverse of the distribution function over tokens in the order of their ids.
    """
    weights = np.exp(logits / np.float32(max(params.temperature, LOWEST_TEMPERATURE)))
    token_ids = np.flatnonzero(weights >= _lowest_weight(weights, params))
    cumulative = np.cumsum(weights[token_ids], dtype=np.float64)
    place = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return int(token_ids[min(place, len(token_ids) - 1)])


def _lowest_weight(weights: Row, params: SamplingParams) -> float:
    """The weight of the least likely token that can be drawn; the likeliest one has 1."""
    lowest = float(_TINY)
    if 0 < params.top_k < len(weights):
        kth = len(weights) - params.top_k
        lowest = max(lowest, float(np.partition(weights, kth)[kth]))
    if params.top_p < 1:
        lowest = max(lowest, _last_of_top_p(weights[weights >= lowest], params.top_p))
    return max(lowest, params.min_p)


def _last_of_top_p(weights: NDArray[np.float32], top_p: float) -> float:
    """The lowest weight among the fewest highest ones that make up `top_p` of all."""
    goal = top_p * weights.sum(dtype=np.float64)
    for floor in _FLOORS:
        likely = weights[weights > floor]
        if likely.sum(dtype=np.float64) >= goal:
            break
    likely = np.sort(likely)[::-1]
    last = np.searchsorted(np.cumsum(likely, dtype=np.float64), goal)
    return float(likely[min(last, len(likely) - 1)])
