"""Completions that keep to a grammar: which tokens may come next, and which must."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

from backends.batching.runner import Mask
from enginebay import Grammar, GrammarCompiler, InvalidRequestError, ServingError


class Constraint:
    """Where one completion stands in its grammar.

    `mask` allows the tokens that may come next; None until `MaskFiller` is asked for it.
    """

    def __init__(
        self, compiler: GrammarCompiler, grammar: Grammar, end_token_ids: frozenset[int]
    ) -> None:
        """`InvalidRequestError` for a grammar that cannot be compiled."""
        self.mask: Mask | None = None
        self.matcher = compiler.matcher(grammar, end_token_ids)
        self._compiler = compiler
        self._grammar = grammar
        self._end_token_ids = end_token_ids
        self._forced = self.matcher.forced()
        self._token_ids: list[int] = []
        self._seconds = 0.0

    @property
    def forced(self) -> int | None:
        """The token that must come next; None where there are several, or several ways to write."""
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
        """Go on by a token; a `ServingError` if the grammar forbids it, or is too complex here."""
        start = perf_counter()
        mask, self.mask = self.mask, None
        if mask is not None and not mask[token_id // 32] >> token_id % 32 & 1:
            raise ServingError(
                "the model's logits leave none of the tokens that the grammar allows"
            )
        if not self.matcher.accept(token_id):
            reason = self.matcher.error.partition("\n")[0]
            raise InvalidRequestError(f"the grammar cannot be followed any further: {reason}")
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
        """Whether the completion could have ended behind its first `tokens` and then `text`."""
        matcher = self._compiler.matcher(self._grammar, self._end_token_ids)
        token_ids = [*self._token_ids[:tokens], *self._compiler.tokenize(text)]
        return all(map(matcher.accept, token_ids)) and matcher.satisfied

    def spent(self, seconds: float) -> None:
        """Time has gone into keeping this completion to its grammar."""
        self._seconds += seconds

    def take_seconds(self) -> float:
        """What has been spent since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class MaskFiller:
    """Fills masks on a thread of its own, so that the model can run meanwhile."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, "masks")

    def start(self, constraints: Iterable[Constraint]) -> "Future[None] | None":
        """Begin to fill the masks that are lacking; None if none is."""
        lacking = [each for each in constraints if each.mask is None]
        return self._thread.submit(self._fill, lacking) if lacking else None

    def fill(self, constraints: Iterable[Constraint]) -> None:
        """Fill the masks that are lacking, while nothing else is being filled."""
        lacking = [each for each in constraints if each.mask is None]
        if lacking:
            self._fill(lacking)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _fill(self, constraints: list[Constraint]) -> None:
        start = perf_counter()
        masks = self._compiler.fill([each.matcher for each in constraints])
        share = (perf_counter() - start) / len(constraints)
        for constraint, mask in zip(constraints, masks, strict=True):
            constraint.mask = mask
            constraint.spent(share)
