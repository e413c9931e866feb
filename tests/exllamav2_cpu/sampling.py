"""`sample_basic`: the choice of a token, as `exllamav2_ext/ext_sampling.cpp` makes it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.exllamav2_cpu.truncation import Candidates

GREEDY_BELOW = 0.01
# Where the vector code's exponential becomes zero.
SMALLEST_EXPONENTIAL = np.float32(1.2e-38)


def sample_basic(
    logits: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    top_a: float,
    min_p: float,
    tfs: float,
    typical: float,
    random: float,
    output_tokens: Tensor,
    output_probs: Tensor,
    output_kprobs: Tensor,
    output_ktokens: Tensor,
    logit_filter: Tensor,
    mirostat: bool,
    mirostat_mu: list[float],
    mirostat_tau: float,
    mirostat_eta: float,
    post_temperature: float,
    xtc_mask: Tensor,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    min_temp: float = 0.0,
    max_temp: float = 0.0,
    temp_exponent: float = 1.0,
    smoothing_factor: float = 0.0,
    skew: float = 0.0,
) -> list[float]:
    """Write a token, its probability and the top ones of each row; return the new `mirostat_mu`.

    `logits` is float `[batch, 1, vocab]` and stays as it is; `logit_filter` (bool, `[batch,
    vocab]`) and the two `k` outputs are meta tensors where they are not wanted. Raises ValueError
    where no token is left: the extension would then pick an arbitrary one.
    """
    for name, tensor, dtype in (
        ("logits", logits, torch.float),
        ("output_tokens", output_tokens, torch.long),
        ("output_probs", output_probs, torch.float),
    ):
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}, not {dtype}")
    mu = list(mirostat_mu)
    wanted = 0 if output_kprobs.is_meta else output_kprobs.shape[2]
    if temperature < GREEDY_BELOW:
        temperature, top_k = 1.0, 1
    for row in range(logits.shape[0]):
        if smoothing_factor > 0:
            temperature /= smoothing_factor  # row after row, as there
        allowed = None if logit_filter.is_meta else logit_filter[row].numpy()
        candidates, likeliest = _softmax(
            logits[row].reshape(-1).numpy(), allowed, temperature, squared=smoothing_factor > 0
        )
        if 0 < top_k < candidates.count:
            candidates.top_k(top_k, likeliest)
            candidates.normalize()
        for wants, truncate, value in (
            (0 < top_p < 1, candidates.top_p, top_p),
            (top_a > 0, candidates.top_a, top_a),
            (0 < min_p < 1, candidates.min_p, min_p),
            (0 < tfs < 1, candidates.tail_free, tfs),
            (0 < typical < 1, candidates.typical, typical),
        ):
            if wants and candidates.count > 1:
                truncate(value)
                candidates.normalize()
        if mirostat and candidates.count > 1:
            candidates.mirostat(mu[row] or 2 * mirostat_tau)
            candidates.normalize()
        if candidates.count > 1 and (post_temperature != 1 or max_temp > min_temp):
            candidates.temperature(post_temperature, min_temp, max_temp, temp_exponent)
        if xtc_probability > 0:
            candidates.xtc(xtc_mask.numpy(), xtc_probability, xtc_threshold)
        if wanted or skew:
            candidates.sort()
        if wanted:
            _write_top(candidates, output_ktokens[row, 0], output_kprobs[row, 0])
        point = random ** float(np.exp(-skew)) if skew else random
        # A little less, because the probabilities may sum to a little less than one.
        candidates.pick(point * 0.9998)
        output_tokens[row, 0] = int(candidates.ids[0])
        output_probs[row, 0] = float(candidates.probs[0])
        if mirostat:
            surprise = -float(np.log2(candidates.probs[0]))
            mu[row] = (mu[row] or 2 * mirostat_tau) + mirostat_eta * (mirostat_tau - surprise)
        if logits.shape[0] > 1:
            random = _next_random(random)
    return mu


def _softmax(
    logits: NDArray[np.float32],
    allowed: NDArray[np.bool_] | None,
    temperature: float,
    *,
    squared: bool,
) -> tuple[Candidates, int]:
    """All tokens in order of their ids, and the likeliest one."""
    values = logits if allowed is None else np.where(allowed, logits, np.float32(-np.inf))
    likeliest = int(np.argmax(values))
    if not values[likeliest] > -1e38:
        raise ValueError("no token is left to choose from: filters and bans exclude all of them")
    distances = values - values[likeliest]
    if squared:
        distances = -distances * distances
    exponentials = np.exp(distances * np.float32(1 / temperature))
    exponentials[exponentials < SMALLEST_EXPONENTIAL] = 0
    count = len(values)
    probs = np.zeros(count + 1, np.float32)
    probs[:count] = exponentials / exponentials.sum()
    return Candidates(probs, np.append(np.arange(count), 0), count), likeliest


def _write_top(candidates: Candidates, tokens: Tensor, probs: Tensor) -> None:
    """The sorted candidates; then ids that are none of them, with probability zero."""
    some = candidates.probs[: candidates.count] > 0
    real = min(len(tokens), int(some.sum()))
    tokens[:real] = torch.from_numpy(candidates.ids[:real].copy())
    probs[:real] = torch.from_numpy(candidates.probs[:real].copy())
    first, *others = candidates.ids[: candidates.count].tolist()
    taken = set(others)
    invented = 0
    for place in range(real, len(tokens)):
        # The search begins anew at the second candidate.
        invented += invented == first
        while invented in taken:
            invented += 1
        tokens[place] = invented
        probs[place] = 0.0
        invented += 1


def _next_random(random: float) -> float:
    """Another number for the next row of a batch."""
    start = value = np.float32(random)
    for _ in range(10):
        value = np.float32(float(value) + 1.337 + float(start))
        value = np.float32(np.fmod(value * value, np.float32(1)))
    return float(value)
