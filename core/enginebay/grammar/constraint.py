"""Applies a grammar to a completion: which tokens may come next, and which must."""

from collections.abc import Iterable
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.errors import InvalidRequestError, ServingError
from enginebay.contract.grammar import Grammar
from enginebay.grammar.compiler import GrammarCompiler


class Constraint:
    """The state of one completion in its grammar.

    `mask` allows the tokens that may come next; None until it is filled.
    """

    def __init__(
        self, compiler: GrammarCompiler, grammar: Grammar, end_token_ids: frozenset[int]
    ) -> None:
        """`InvalidRequestError` for a grammar that cannot be compiled."""
        self.mask: NDArray[np.int32] | None = None
        self.matcher = compiler.matcher(grammar, end_token_ids)
        self._compiler = compiler
        self._grammar = grammar
        self._end_token_ids = end_token_ids
        self._forced = self.matcher.forced()
        self._token_ids: list[int] = []
        self._seconds = 0.0

    @property
    def forced(self) -> int | None:
        """The only possible next token; None if there are several, or several spellings."""
        return self._forced[0] if self._forced else None

    @property
    def satisfied(self) -> bool:
        """Whether the completion may end here."""
        return self.matcher.satisfied

    @property
    def finished(self) -> bool:
        """Whether the completion can only end here."""
        return self.matcher.finished

    def accept(self, token_id: int) -> None:
        """Advance by a token; a `ServingError` if the grammar forbids it or is too complex here."""
        start = perf_counter()
        mask, self.mask = self.mask, None
        if mask is not None and not mask[token_id // 32] >> token_id % 32 & 1:
            raise ServingError("the model's logits rule out every token that the grammar allows")
        if not self.matcher.accept(token_id):
            reason = self.matcher.error.partition("\n")[0]
            message = f"the grammar cannot be followed any further: {reason}"
            raise InvalidRequestError(message, param="constraint")
        self._token_ids.append(token_id)
        if self._forced and self._forced[0] == token_id:
            del self._forced[0]
        else:
            self._forced = []
        if not self._forced:
            # Never while some are left: all are the same then, appended at once or one by one.
            self._forced = self.matcher.forced()
        self.spent(perf_counter() - start)

    def satisfied_after(self, tokens: int, text: str) -> bool:
        """Whether the completion could have ended after its first `tokens` and then `text`."""
        matcher = self._compiler.matcher(self._grammar, self._end_token_ids)
        token_ids = [*self._token_ids[:tokens], *self._compiler.tokenize(text)]
        return all(map(matcher.accept, token_ids)) and matcher.satisfied

    def spent(self, seconds: float) -> None:
        """Add time spent on the grammar of this completion."""
        self._seconds += seconds

    def take_seconds(self) -> float:
        """The time spent since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def fill_masks(compiler: GrammarCompiler, constraints: Iterable[Constraint]) -> None:
    """Fill the missing masks; `allowed_tokens` reads them.

    Call it after launching the forward pass: a GPU is still computing then. On a CPU, a thread that
    fills them while the model runs takes as much time from the model as it saves (measured: 2
    cores, 1 and 16 choices).
    """
    lacking = [constraint for constraint in constraints if constraint.mask is None]
    if not lacking:
        return
    start = perf_counter()
    masks = compiler.fill([constraint.matcher for constraint in lacking])
    share = (perf_counter() - start) / len(lacking)
    for constraint, mask in zip(lacking, masks, strict=True):
        constraint.mask = mask
        constraint.spent(share)
