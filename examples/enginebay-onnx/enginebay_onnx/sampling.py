"""From logits to tokens, in numpy."""

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from enginebay import Completion, SamplingParams, TokenLogprob, TopLogprob

Logits = NDArray[np.float32]
_HONOURED = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "allowed_token_ids",
        "min_tokens",
        "seed",
        "logprobs",
        "prompt_logprobs",
    }
)
UNSUPPORTED = frozenset(SamplingParams.__dataclass_fields__) - _HONOURED - Completion.keeps
# Of a banned token; a number, so that one of those is taken where a grammar leaves no others.
_BANNED = -1e30


class Sampler:
    """Picks the tokens of one choice. With a seed they do not depend on what else is running."""

    def __init__(
        self, params: SamplingParams, index: int, prompt: tuple[int, ...], ends: frozenset[int]
    ) -> None:
        self._params = params
        self._prompt = set(prompt)
        self._ends = list(ends)
        self._counts: Counter[int] = Counter()
        seed = None if params.seed is None else f"{params.seed}/{index}"
        self._random = random.Random(seed)

    def add(self, token_id: int) -> None:
        """The choice has one more token."""
        self._counts[token_id] += 1

    def sample(self, logits: Logits, allowed: NDArray[np.bool_] | None) -> int:
        """A token by the logits `[vocabulary]`, among the allowed ones whatever else bans them."""
        logits = self._changed(logits)
        if allowed is not None:
            logits[~allowed] = -math.inf
        params = self._params
        if params.temperature <= 0:
            return int(logits.argmax())
        scaled = (logits - logits.max()) / np.float32(max(params.temperature, 1e-6))
        if 0 < params.top_k < len(scaled):
            scaled[scaled < np.partition(scaled, -params.top_k)[-params.top_k]] = -math.inf
        weights = np.exp(scaled)
        if params.top_p < 1:
            ranked = np.sort(weights)[::-1]
            before = ranked.cumsum() - ranked
            kept = max(1, int((before < params.top_p * ranked.sum()).sum()))
            weights[weights < ranked[kept - 1]] = 0
        weights[weights < params.min_p] = 0  # the likeliest one has a weight of 1
        cumulative = weights.cumsum(dtype=np.float64)
        target = min(self._random.random() * cumulative[-1], np.nextafter(cumulative[-1], 0))
        return int(cumulative.searchsorted(target, side="right"))

    def _changed(self, logits: Logits) -> Logits:
        params, counts = self._params, self._counts
        logits = np.nan_to_num(logits, nan=_BANNED).clip(_BANNED, -_BANNED)
        if params.repetition_penalty != 1:  # Keskar et al., 2019, CTRL
            seen = list(self._prompt | counts.keys())
            found = logits[seen]
            penalty = np.float32(params.repetition_penalty)
            logits[seen] = np.where(found > 0, found / penalty, found * penalty)
        for token, count in counts.items():
            logits[token] -= params.presence_penalty + params.frequency_penalty * count
        for token, bias in params.logit_bias.items():
            logits[token] += bias
        if counts.total() < params.min_tokens:
            logits[self._ends] = _BANNED
        if params.allowed_token_ids:
            banned = np.ones(len(logits), np.bool_)
            banned[list(params.allowed_token_ids)] = False
            logits[banned] = _BANNED
        return logits.clip(_BANNED, -_BANNED)


def token_logprob(
    logits: Logits, token_id: int, count: int, text_of: Callable[[int], str]
) -> TokenLogprob:
    """A token's logprob by the model's own logits, and the `count` likeliest ones beside it."""
    highest = logits.max()
    logprobs = logits - (highest + np.log(np.exp(logits - highest).sum()))
    count = min(count, len(logprobs) - 1)
    best = np.argpartition(-logprobs, count)[:count]
    top = sorted(((float(logprobs[i]), int(i)) for i in best), key=lambda pair: -pair[0])
    return TokenLogprob(
        token_id,
        text_of(token_id),
        float(logprobs[token_id]),
        tuple(TopLogprob(i, text_of(i), value) for value, i in top),
    )
