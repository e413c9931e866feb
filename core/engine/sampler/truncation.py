"""Truncation samplers: they drop tokens from a distribution.

Each takes the logarithms of probabilities that sum to 1, `[candidates]` in any order, and says
which candidates stay, at least one. None sorts more than it needs, since that costs more than all
the rest of sampling.
"""

import numpy as np
from numpy.typing import NDArray

Logprobs = NDArray[np.float64]
Kept = NDArray[np.bool_]

_FLOORS = (1e-2, 1e-4, 0.0)


def top_n_sigma(logprobs: Logprobs, sigmas: float) -> Kept:
    """Logits within this many standard deviations of the top: https://arxiv.org/abs/2411.07641"""
    return np.asarray(logprobs >= logprobs.max() - sigmas * logprobs.std())


def top_k(logprobs: Logprobs, count: int) -> Kept:
    """The likeliest; ties with the last one are included."""
    if count >= len(logprobs):
        return np.ones(len(logprobs), np.bool_)
    place = len(logprobs) - count
    return np.asarray(logprobs >= np.partition(logprobs, place)[place])


def typical(logprobs: Logprobs, mass: float) -> Kept:
    """The smallest set with this probability mass, closest to the expected surprise first.

    https://arxiv.org/abs/2202.00666
    """
    probabilities = np.exp(logprobs)
    deviation = np.abs(logprobs - np.dot(probabilities, logprobs))
    near = np.arange(len(logprobs))
    for furthest in (1.0, 4.0, np.inf):
        near = np.flatnonzero(deviation <= furthest)
        if len(near) and probabilities[near].sum() >= mass:
            break
    order = near[np.argsort(deviation[near])]
    count = int(np.searchsorted(np.cumsum(probabilities[order]), mass)) + 1
    kept = np.zeros(len(logprobs), np.bool_)
    kept[order[:count]] = True
    return kept


def top_p(logprobs: Logprobs, mass: float) -> Kept:
    """The likeliest tokens that reach this probability mass: https://arxiv.org/abs/1904.09751"""
    probabilities = np.exp(logprobs)
    likely = probabilities
    for floor in _FLOORS:
        likely = probabilities[probabilities >= floor * probabilities.max()]
        if likely.sum() >= mass:
            break
    likely = np.sort(likely)[::-1]
    last = int(np.searchsorted(np.cumsum(likely), mass))
    return np.asarray(probabilities >= likely[min(last, len(likely) - 1)])


def top_a(logprobs: Logprobs, factor: float) -> Kept:
    """What is at least as likely as `factor` times the square of the highest probability."""
    highest = logprobs.max()
    return np.asarray(logprobs >= min(np.log(factor) + 2 * highest, highest))


def min_p(logprobs: Logprobs, ratio: float) -> Kept:
    """Tokens at least this likely, relative to the likeliest."""
    return np.asarray(logprobs >= logprobs.max() + np.log(ratio))


def tail_free(logprobs: Logprobs, mass: float) -> Kept:
    """Without the tail, where probabilities fall evenly.

    It begins where this share of the sum of the second derivatives is reached:
    https://www.trentonbricken.com/Tail-Free-Sampling
    """
    order = np.argsort(-logprobs)
    bends = np.abs(np.diff(np.exp(logprobs[order]), 2))
    kept = np.ones(len(logprobs), np.bool_)
    if bends.sum() > 0:
        last = int(np.searchsorted(np.cumsum(bends) / bends.sum(), mass, side="right"))
        kept[order[last + 1 :]] = False
    return kept


def exclude_top(logprobs: Logprobs, threshold: float) -> Kept:
    """XTC: drops all but the least likely of the tokens at least this likely.

    https://github.com/oobabooga/text-generation-webui/pull/6335
    """
    likely = np.flatnonzero(np.exp(logprobs) >= threshold)
    kept = np.ones(len(logprobs), np.bool_)
    if len(likely) > 1:
        kept[likely] = False
        kept[likely[np.argmin(logprobs[likely])]] = True
    return kept
