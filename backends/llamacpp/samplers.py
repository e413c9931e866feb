"""How one choice gets its tokens from logits."""

from collections.abc import Collection, Sequence
from random import Random

import numpy as np

from backends.batching.runner import Mask
from backends.llamacpp.chain import Chain, needs_chain
from backends.llamacpp.vocabulary import Vocabulary
from backends.sampling.draw import draw
from backends.sampling.masks import masked
from backends.sampling.penalties import LogitChanges
from backends.sampling.row import Row
from enginebay import SamplingParams


class NativeSampler:
    """The sampling state of one choice: its params, the tokens it has seen, its random numbers.

    The numbers follow from the seed and the choice's index alone. `is_plain_greedy` says that the
    token is always the one with the highest logit, whether or not `sample` is asked.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        index: int,
        eos_token_ids: Collection[int],
    ) -> None:
        """`InvalidRequestError` for params llama.cpp cannot honour."""
        self._params = params
        self._random = Random(None if params.seed is None else f"{params.seed}/{index}")
        ends = set() if params.ignore_eos else set(eos_token_ids)
        self._changes = LogitChanges(
            params, prompt_token_ids, ends.union(params.stop_token_ids), vocabulary.size
        )
        self._chain: Chain | None = None
        if needs_chain(params):
            self._chain = Chain(vocabulary, params, prompt_token_ids, self._random)
        self.is_plain_greedy = not (params.temperature > 0 or self._changes.any or self._chain)

    def sample(self, row: Row, mask: Mask | None = None) -> int:
        """Choose a token by the model's logits `[vocabulary]`, and take note of it.

        With a mask, one that it allows, even if all of these are banned.
        """
        with np.errstate(over="ignore"):  # what is as unlikely as that becomes impossible
            logits = self._changes.apply(row)
            if mask is not None:
                logits = masked(logits, row, mask)
            token_id = self._choose(logits)
        self.accept(token_id)
        return token_id

    def accept(self, token_id: int) -> None:
        """Take note of a token of the completion."""
        self._changes.accept(token_id)
        if self._chain:
            self._chain.accept(token_id)

    def close(self) -> None:
        """Free native memory; nothing may be sampled afterwards."""
        if self._chain:
            self._chain.close()

    def _choose(self, logits: Row) -> int:
        likeliest = int(logits.argmax())  # of a row with NaN in it, that
        highest = logits[likeliest]
        if np.isnan(highest):
            raise FloatingPointError("the logits are not numbers")
        if np.isinf(highest):  # it wins over all others, or all are forbidden
            return likeliest
        if self._chain:
            return self._chain.choose(logits - highest)
        if self._params.temperature <= 0:
            return likeliest
        return draw(logits - highest, self._params, self._random.random())
