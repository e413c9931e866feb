"""Logprobs of sampled tokens, from the model's own distribution."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.types import TokenLogprob, TopLogprob
from enginebay.engine.sampler.draw import kth_highest

TokenText = Callable[[int], str | bytes]
"""The text of a token by its id, or its bytes, which may be a part of a character."""


def text_and_bytes(token: str | bytes) -> tuple[str, bytes | None]:
    """`token` and `text_bytes` of a logprob entry."""
    if isinstance(token, str):
        return token, None
    text = token.decode(errors="replace")
    return text, token if "\ufffd" in text else None


class RowLogprobs:
    """Of one row of logits, read before anything changes it.

    `top` is how many of the likeliest tokens are wanted; ties go to the lower id.
    """

    def __init__(self, logits: NDArray[np.float32], top: int) -> None:
        highest = logits.max()
        weights = np.exp(logits - highest)
        self._whole = float(highest) + float(np.log(weights.sum(dtype=np.float64)))
        self._logits = logits
        self._top = _likeliest(logits, min(top, len(logits)))

    def of(self, token_id: int, token_text: TokenText, *, ranked: bool = False) -> TokenLogprob:
        """The entry of a token that was sampled, or that a prompt has; `ranked`: with its rank."""
        text, own_bytes = text_and_bytes(token_text(token_id))
        return TokenLogprob(
            token_id,
            text,
            self._logprob(token_id),
            tuple(self._candidate(i, token_text) for i in self._top),
            self._rank(token_id) if ranked else None,
            own_bytes,
        )

    def _candidate(self, token_id: int, token_text: TokenText) -> TopLogprob:
        text, own_bytes = text_and_bytes(token_text(token_id))
        return TopLogprob(token_id, text, self._logprob(token_id), own_bytes)

    def _logprob(self, token_id: int) -> float:
        return float(self._logits[token_id]) - self._whole

    def _rank(self, token_id: int) -> int:
        own = self._logits[token_id]
        equal = np.count_nonzero(self._logits[:token_id] == own)
        return 1 + int(np.count_nonzero(self._logits > own) + equal)


def _likeliest(logits: NDArray[np.float32], count: int) -> list[int]:
    if not count:
        return []
    candidates = np.flatnonzero(logits >= kth_highest(logits, count))
    order = np.argsort(-logits[candidates], kind="stable")
    token_ids: list[int] = candidates[order[:count]].tolist()
    return token_ids
