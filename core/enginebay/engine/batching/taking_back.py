"""What a choice may have to take back, as it must not have certain texts."""

import numpy as np

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import Delta
from enginebay.engine.batching.runner import Sampled
from enginebay.engine.sampler.logits import Mask

_MOST_TRIES = 1000
"""Tokens taken back without one that stays, before a request fails."""


class Uncertain:
    """The tokens of a completion, and deltas that are held until it is certain that they stay.

    `tokens`: all so far, and of each whether it stays whatever it begins. `stays`: whether the next
    one does: the constraint allows no other.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.tokens: list[tuple[Sampled, bool]] = []
        self.stays = False
        self._allowed = frozenset(params.allowed_token_ids)
        self._held: list[Delta] = []
        self._forbidden: dict[int, set[int]] = {}  # tokens, by their place in the completion
        self._tries = 0

    def hold(self, delta: Delta, uncertain: int) -> list[Delta]:
        """One more delta, of which and those before so many are uncertain; those that stay."""
        self._held.append(delta)
        certain = len(self._held) - uncertain
        released, self._held = self._held[:certain], self._held[certain:]
        if released:
            self._tries = 0
            first = len(self.tokens) - uncertain
            self._forbidden = {at: ids for at, ids in self._forbidden.items() if at >= first}
        return released

    def take_back(self, count: int) -> None:
        """The last tokens go, and the first of them does not come at its place again.

        `InvalidRequestError` if nothing else can come there.
        """
        place = len(self.tokens) - count
        forbidden = self._forbidden.setdefault(place, set())
        forbidden.add(self.tokens[place][0].token_id)
        self._forbidden = {at: ids for at, ids in self._forbidden.items() if at <= place}
        self._tries += 1
        if self._tries > _MOST_TRIES or (self._allowed and self._allowed <= forbidden):
            raise InvalidRequestError(
                "banned_strings leave the model no token to generate", param="banned_strings"
            )
        del self.tokens[place:]
        del self._held[max(0, len(self._held) - (count - 1)) :]

    def mask(self, mask: Mask | None, vocab_size: int) -> Mask | None:
        """What may come next, of what `mask` allows: all, if that is all taken back."""
        forbidden = self._forbidden.get(len(self.tokens))
        self.stays = False
        if not forbidden:
            return mask
        left = np.full(-(-vocab_size // 32), -1, np.int32) if mask is None else mask.copy()
        bits = left.view(np.uint32)
        for token_id in forbidden:
            bits[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        if mask is not None and not bits.any():
            self.stays = True
            return mask
        return left
