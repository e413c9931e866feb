"""Truncation samplers: they drop tokens from a distribution.

Each takes the logarithms of probabilities that sum to 1, `[candidates]` in any order, and says
which candidates stay, at least one; `top_k` and `min_p` take any logits. None sorts more than it
needs, since that costs more than all the rest of sampling.
"""

import numpy as np
from numpy.typing import NDArray

from enginebay.engine.sampler.temperature import Logits, mean

Kept = NDArray[np.bool_]

_FLOORS = (1e-2, 1e-4, 0.0)
_DISTANCES = (1.0, 3.0, 5.0, 7.0, 9.0, 11.0)
_SORTED = 4096
_SAMPLE = 256


def top_n_sigma(logprobs: Logits, sigmas: float) -> Kept:
    """Logits within this many standard deviations of the top: https://arxiv.org/abs/2411.07641"""
    return np.asarray(logprobs >= float(logprobs.max()) - sigmas * float(logprobs.std()))


def top_k(logprobs: Logits, count: int) -> Kept:
    """The likeliest; ties with the last one are included."""
    if count >= len(logprobs):
        return np.ones(len(logprobs), np.bool_)
    place = len(logprobs) - count
    return np.asarray(logprobs >= np.partition(logprobs, place)[place])


def typical(logprobs: Logits, mass: float) -> Kept:
    """The smallest set with this probability mass, closest to the expected surprise first.

    https://arxiv.org/abs/2202.00666
    """
    deviation: Logits = logprobs - mean(logprobs)
    np.abs(deviation, out=deviation)
    within = np.ones(len(logprobs), np.bool_)
    for furthest in _DISTANCES:
        near = deviation <= furthest
        if near.any() and np.exp(logprobs[near]).sum(dtype=np.float64) >= mass:
            within = near
            break
    last, count = _nearest(deviation[within], np.exp(logprobs[within]), mass)
    kept: Kept = deviation < last
    kept[np.flatnonzero(deviation == last)[:count]] = True
    return kept


def _nearest(distances: Logits, weights: Logits, mass: float) -> tuple[float, int]:
    """The distance up to which weights have this sum, and how many as far are needed for it."""
    while len(distances) > _SORTED:
        closer = distances < float(np.median(distances[:: len(distances) // _SAMPLE]))
        weight = weights[closer].sum(dtype=np.float64)
        if weight < mass:
            mass -= weight
            closer = ~closer
        if closer.all():
            break
        distances, weights = distances[closer], weights[closer]
    order = np.argsort(distances, kind="stable")
    sums = np.cumsum(weights[order], dtype=np.float64)
    place = min(int(np.searchsorted(sums, mass)), len(order) - 1)
    found = distances[order[place]]
    return float(found), place + 1 - int(np.count_nonzero(distances < found))


def top_p(logprobs: Logits, mass: float) -> Kept:
    """The likeliest tokens that reach this probability mass: https://arxiv.org/abs/1904.09751"""
    probabilities = np.exp(logprobs)
    likely, highest = probabilities, float(probabilities.max())
    for floor in _FLOORS:
        likely = probabilities[probabilities >= floor * highest]
        if likely.sum(dtype=np.float64) >= mass:
            break
    likely = np.sort(likely)[::-1]
    last = int(np.searchsorted(np.cumsum(likely, dtype=np.float64), mass))
    return np.asarray(probabilities >= likely[min(last, len(likely) - 1)])


def top_a(logprobs: Logits, factor: float) -> Kept:
    """What is at least as likely as `factor` times the square of the highest probability."""
    highest = float(logprobs.max())
    return np.asarray(logprobs >= min(float(np.log(factor)) + 2 * highest, highest))


def min_p(logprobs: Logits, ratio: float) -> Kept:
    """Tokens at least this likely, relative to the likeliest."""
    return np.asarray(logprobs >= float(logprobs.max()) + float(np.log(ratio)))


def tail_free(logprobs: Logits, mass: float) -> Kept:
    """Without the tail, where probabilities fall evenly.

    It begins where this share of the sum of the second derivatives is reached:
    https://www.trentonbricken.com/Tail-Free-Sampling
    """
    probabilities = np.exp(logprobs)
    highest = float(probabilities.max())
    for floor in _FLOORS:
        likely = np.flatnonzero(probabilities >= floor * highest)
        order = likely[np.argsort(-logprobs[likely], kind="stable")]
        sums = np.cumsum(np.abs(np.diff(probabilities[order], 2)), dtype=np.float64)
        if not len(sums):
            continue
        # The rest adds no more than it falls, twice: from the last two of these to 0.
        rest = 2 * float(probabilities[order[-2]]) if len(order) < len(logprobs) else 0.0
        first, last = (
            int(np.searchsorted(sums, mass * total, side="right"))
            for total in (sums[-1], sums[-1] + rest)
        )
        if first == last < len(sums) or not rest:
            break
    kept = np.ones(len(logprobs), np.bool_)
    if len(sums) and sums[-1] > 0:
        kept[:] = False
        kept[order[: last + 1]] = True
    return kept


def exclude_top(logprobs: Logits, threshold: float) -> Kept:
    """XTC: drops all but the least likely of the tokens at least this likely.

    https://github.com/oobabooga/text-generation-webui/pull/6335
    """
    lowest = float(np.log(threshold)) if threshold > 0 else -np.inf
    likely = np.flatnonzero(logprobs >= lowest)
    kept = np.ones(len(logprobs), np.bool_)
    if len(likely) > 1:
        kept[likely] = False
        kept[likely[np.argmin(logprobs[likely])]] = True
    return kept
