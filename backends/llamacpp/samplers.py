"""How one choice gets its tokens from logits."""

from collections.abc import Collection, Sequence
from random import Random

import numpy as np

from backends.llamacpp.candidates import Row
from backends.llamacpp.chain import Chain, needs_chain
from backends.llamacpp.draw import draw
from backends.llamacpp.grammar import Grammar
from backends.llamacpp.penalties import LogitChanges
from backends.llamacpp.vocabulary import Vocabulary
from enginebay import InvalidRequestError, SamplingParams


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
        """`InvalidRequestError` for params llama.cpp cannot honour, such as a wrong grammar."""
        self._params = params
        self._vocabulary = vocabulary
        self._random = Random(None if params.seed is None else f"{params.seed}/{index}")
        ends = set() if params.ignore_eos else set(eos_token_ids)
        self._changes = LogitChanges(
            params, prompt_token_ids, ends.union(params.stop_token_ids), vocabulary.size
        )
        self._grammar: Grammar | None = None
        self._chain: Chain | None = None
        if needs_chain(params):
            self._chain = Chain(vocabulary, params, prompt_token_ids, self._random)
        if params.grammar:
            try:
                self._grammar = Grammar(vocabulary, params.grammar)
            except InvalidRequestError:
                self.close()
                raise
        self.is_plain_greedy = not (
            params.temperature > 0 or self._changes.any or self._grammar or self._chain
        )

    def sample(self, row: Row) -> int:
        """Choose a token by the model's logits `[vocabulary]`, and take note of it."""
        with np.errstate(over="ignore"):  # what is as unlikely as that becomes impossible
            logits = self._changes.apply(row)
            token_id = self._choose(logits)
            if self._grammar and not self._grammar.allows(token_id):
                token_id = self._choose_allowed(self._grammar.mask(logits))
        self.accept(token_id)
        return token_id

    def accept(self, token_id: int) -> None:
        """Take note of a token of the completion."""
        self._changes.accept(token_id)
        if self._chain:
            self._chain.accept(token_id)
        if self._grammar:
            self._grammar.accept(token_id)

    def force(self, token_id: int) -> None:
        """Take note of a token that was not chosen; a grammar only of what it would allow."""
        self._changes.accept(token_id)
        if self._chain:
            self._chain.accept(token_id)
        if self._grammar and self._grammar.allows(token_id):
            self._grammar.accept(token_id)

    def close(self) -> None:
        """Free native memory; nothing may be sampled afterwards."""
        if self._chain:
            self._chain.close()
        if self._grammar:
            self._grammar.close()

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

    def _choose_allowed(self, logits: Row) -> int:
        """From what the grammar leaves. If that is nothing, the completion is at its end."""
        if logits.max() > -np.inf:
            return self._choose(logits)
        end = self._vocabulary.end_token_id
        if end is None:
            raise InvalidRequestError(
                "the grammar leaves no token, and the model has none to end with", param="grammar"
            )
        return end
