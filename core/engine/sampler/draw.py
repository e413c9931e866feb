"""Temperature, top_k, top_p, min_p and one draw, in numpy.

For top_p without top_k, the default of most clients, only the reachable tokens are sorted.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from core.contract.sampling_params import SamplingParams
from core.engine.sampler.logits import Row

LOWEST_TEMPERATURE = 1e-6
_FLOORS = (1e-2, 1e-4, 0.0)
_BLOCK = 1024


def seeded_random(params: SamplingParams, index: int) -> Random:
    """The random generator of choice `index`; it depends only on the seed and the index."""
    return Random(None if params.seed is None else f"{params.seed}/{index}")


def draw(logits: Row, params: SamplingParams, uniform: float) -> int:
    """Draw a token from logits `[vocabulary]` with maximum 0 and a number in [0, 1).

    Uses the inverse CDF over tokens in the order of their ids.
    """
    weights = logits / np.float32(max(params.temperature, LOWEST_TEMPERATURE))
    np.exp(weights, out=weights)
    lowest = lowest_weight(weights, params)
    if not lowest:
        return _place(weights, uniform)
    token_ids = np.flatnonzero(weights >= lowest)
    return int(token_ids[_place(weights[token_ids], uniform)])


def _place(weights: Row, uniform: float) -> int:
    """Where the cumulative weight first exceeds this share of the total; in blocks, for speed."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    sums = np.cumsum(blocks)
    target = uniform * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), np.flatnonzero(blocks)[-1])
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = sums[block] - blocks[block]
    place = np.searchsorted(np.cumsum(inside, dtype=np.float64), target - before, side="right")
    return int(block * _BLOCK + min(place, np.flatnonzero(inside)[-1]))


def lowest_weight(weights: Row, params: SamplingParams) -> float:
    """The weight of the least likely token that can be drawn, 0 for any.

    `weights` `[vocabulary]`: probabilities, of which the highest is 1.
    """
    lowest = 0.0
    if 0 < params.top_k < len(weights):
        kth = len(weights) - params.top_k
        lowest = float(np.partition(weights, kth)[kth])
    if params.top_p < 1:
        kept = weights[weights >= lowest] if lowest else weights
        lowest = max(lowest, _last_of_top_p(kept, params.top_p, params.min_p))
    return max(lowest, params.min_p)


def _last_of_top_p(weights: NDArray[np.float32], top_p: float, min_p: float) -> float:
    """The lowest weight among the fewest highest ones that make up `top_p` of all.

    0 if it is none above `min_p`.
    """
    goal = top_p * weights.sum(dtype=np.float64)
    for floor in _FLOORS:
        likely = weights[weights > max(floor, min_p)]
        if likely.size and likely.sum(dtype=np.float64) >= goal:
            break
        if floor <= min_p:
            return 0.0
    likely = np.sort(likely)[::-1]
    last = np.searchsorted(np.cumsum(likely, dtype=np.float64), goal)
    return float(likely[min(last, len(likely) - 1)])
