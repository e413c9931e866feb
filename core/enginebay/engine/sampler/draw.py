"""Temperature, top_k, top_p, min_p and one draw, in numpy.

Whole rows are passed over as rarely as possible, in float32. Only tokens that can be drawn are
sorted, or gathered, since that costs more than all the rest of sampling.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler.logits import Row

LOWEST_TEMPERATURE = 1e-6
_FLOORS = (1e-2, 1e-4, 0.0)
_BLOCK = 1024
_GROUPS = 1024
_MARGIN = 1e-3
"""How far below the lowest weight tokens are looked at, in its logarithm: both are rounded."""

Weights = NDArray[np.float32] | NDArray[np.float64]


def seeded_random(params: SamplingParams, index: int) -> Random:
    """The random generator of choice `index`; it depends only on the seed and the index."""
    return Random(None if params.seed is None else f"{params.seed}/{index}")


def draw(logits: Row, params: SamplingParams, uniform: float) -> int:
    """Draw a token from logits `[vocabulary]` with maximum 0 and a number in [0, 1).

    Uses the inverse CDF over tokens in the order of their ids.
    """
    token_ids, weights = reachable(logits, params.temperature, params)
    drawn = place(weights, uniform)
    return drawn if token_ids is None else int(token_ids[drawn])


def place(weights: Weights, uniform: float) -> int:
    """Where the cumulative weight first exceeds this share of the total; in blocks, for speed."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    sums = np.cumsum(blocks)
    target = uniform * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), np.flatnonzero(blocks)[-1])
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = sums[block] - blocks[block]
    found = np.searchsorted(np.cumsum(inside, dtype=np.float64), target - before, side="right")
    return int(block * _BLOCK + min(found, np.flatnonzero(inside)[-1]))


def place_by_weight(weights: Weights, uniform: float) -> int:
    """The same, but over weights from the highest on; equal weights in their order."""
    target = uniform * weights.sum(dtype=np.float64)
    highest = float(weights.max())
    for floor in _FLOORS:
        likely = np.flatnonzero(weights > floor * highest)
        order = likely[np.argsort(-weights[likely], kind="stable")]
        sums = np.cumsum(weights[order], dtype=np.float64)
        if sums[-1] > target:
            break
    return int(order[min(int(np.searchsorted(sums, target, side="right")), len(order) - 1)])


def reachable(
    logits: Row, temperature: float, params: SamplingParams
) -> tuple[NDArray[np.intp] | None, Row]:
    """The tokens that top_k, top_p and min_p leave, in the order of their ids, and their weights.

    None for all tokens. `logits` `[vocabulary]` have maximum 0.
    """
    scale = np.float32(max(temperature, LOWEST_TEMPERATURE))
    token_ids = _above(logits, _lowest_logit(logits, float(scale), params))
    weights = logits / scale if token_ids is None else logits[token_ids] / scale
    np.exp(weights, out=weights)
    lowest = _lowest_weight(weights, params)
    if not lowest:
        return token_ids, weights
    kept = np.flatnonzero(weights >= lowest)
    return kept if token_ids is None else token_ids[kept], weights[kept]


def _above(logits: Row, lowest: float) -> NDArray[np.intp] | None:
    return np.flatnonzero(logits >= lowest) if lowest > -np.inf else None


def _lowest_logit(logits: Row, temperature: float, params: SamplingParams) -> float:
    """A logit that each token which top_k, or min_p alone, leaves has at least."""
    if 0 < params.top_k < len(logits):
        return kth_highest(logits, params.top_k) - temperature * _MARGIN
    if params.top_p >= 1 and params.min_p > 0:
        return temperature * (float(np.log(params.min_p)) - _MARGIN)
    return -np.inf


def kth_highest(values: Weights, count: int) -> float:
    """A value that at least `count` values reach, and few more."""
    size = len(values) // _GROUPS * _GROUPS
    if count * 2 < _GROUPS < size:
        # As many groups have a value in them that is as high.
        values = values[:size].reshape(-1, _GROUPS).max(axis=0)
    return float(np.partition(values, len(values) - count)[len(values) - count])


def _lowest_weight(weights: Row, params: SamplingParams) -> float:
    """The weight of the least likely token that can be drawn, 0 for any.

    `weights` `[tokens]`: probabilities, of which the highest is 1.
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
