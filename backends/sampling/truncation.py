"""Samplers that leave out tokens of a sorted distribution.

Each takes the logarithms of probabilities that sum to 1, the highest first, `[candidates]`, and
says which candidates stay, at least one.
"""

import numpy as np
from numpy.typing import NDArray

Logprobs = NDArray[np.float64]
Kept = NDArray[np.bool_]


def top_n_sigma(logprobs: Logprobs, sigmas: float) -> Kept:
    """Logits within so many standard deviations of the highest: https://arxiv.org/abs/2411.07641"""
    return np.asarray(logprobs >= logprobs[0] - sigmas * logprobs.std())


def top_k(logprobs: Logprobs, count: int) -> Kept:
    """The likeliest; with the last one all that are as likely."""
    return np.asarray(logprobs >= logprobs[min(count, len(logprobs)) - 1])


def typical(logprobs: Logprobs, mass: float) -> Kept:
    """The fewest that have so much probability, by how close they come to the expected surprise.

    https://arxiv.org/abs/2202.00666
    """
    probabilities = np.exp(logprobs)
    deviation = np.abs(logprobs - np.dot(probabilities, logprobs))
    order = np.argsort(deviation)
    count = int(np.searchsorted(np.cumsum(probabilities[order]), mass)) + 1
    kept = np.zeros(len(logprobs), np.bool_)
    kept[order[:count]] = True
    return kept


def top_p(logprobs: Logprobs, mass: float) -> Kept:
    """The fewest likeliest ones that have so much probability: https://arxiv.org/abs/1904.09751"""
    last = int(np.searchsorted(np.cumsum(np.exp(logprobs)), mass))
    return np.asarray(logprobs >= logprobs[min(last, len(logprobs) - 1)])


def top_a(logprobs: Logprobs, factor: float) -> Kept:
    """What is at least as likely as `factor` times the square of the highest probability."""
    kept = logprobs >= np.log(factor) + 2 * logprobs[0]
    kept[0] = True
    return np.asarray(kept)


def min_p(logprobs: Logprobs, ratio: float) -> Kept:
    """What is at least so likely, relative to the likeliest."""
    return np.asarray(logprobs >= logprobs[0] + np.log(ratio))


def tail_free(logprobs: Logprobs, mass: float) -> Kept:
    """Without the tail, in which probabilities fall evenly.

    It begins where so much of the sum of the second derivatives is behind:
    https://www.trentonbricken.com/Tail-Free-Sampling
    """
    bends = np.abs(np.diff(np.exp(logprobs), 2))
    kept = np.ones(len(logprobs), np.bool_)
    if bends.sum() > 0:
        kept[int(np.searchsorted(np.cumsum(bends) / bends.sum(), mass, side="right")) + 1 :] = False
    return kept


def exclude_top(logprobs: Logprobs, threshold: float) -> Kept:
    """Without all but the last of those at least so likely (XTC).

    https://github.com/oobabooga/text-generation-webui/pull/6335
    """
    likely = int(np.count_nonzero(np.exp(logprobs) >= threshold))
    kept = np.ones(len(logprobs), np.bool_)
    kept[: max(0, likely - 1)] = False
    return kept
