"""Enforces the reasoning budget of a choice by forcing the tokens that end its reasoning."""

from collections.abc import Sequence

from enginebay.contract.sampling_params import ReasoningBudget

# Tokens beyond the budget that may finish a character, or the tag that ends reasoning anyway.
_GRACE = 8


class BudgetWatch:
    """Follows one choice: `add` every token, and take `forced` as the next one unless it is None.

    Tag tokens are not counted unless they also contain other text.
    """

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._inside = budget.starts_inside
        self._tokens = budget.tokens
        self._used = 0
        self._text = ""  # what may be the beginning of a tag
        self._half = False  # whether the last token has left a character unfinished
        self._closing: Sequence[int] = ()
        self._update()

    @property
    def forced(self) -> int | None:
        """The token that must come next; None if the model is free to choose."""
        return self._closing[0] if self._closing else None

    def add(self, text: str) -> None:
        """The choice has one more token, which completes these characters."""
        if self._closing:
            self._closing = self._closing[1:]
            self._inside = bool(self._closing)
            return
        self._half = not text
        was_inside = self._inside
        self._follow(text)
        if was_inside and self._inside:
            self._used += 1
        self._update()

    def close(self) -> bool:
        """End reasoning as if the budget were used up; whether the choice is reasoning at all."""
        if self._inside:
            self._tokens = min(self._tokens, self._used)
            self._update()
        return self._inside

    def let_go(self) -> None:
        """Stop forcing: the forced tokens are not allowed here, so reasoning has ended."""
        self._closing = ()
        self._inside = False

    def _follow(self, text: str) -> None:
        self._text += text
        while True:
            tag = self._budget.end if self._inside else self._budget.start
            found = self._text.find(tag)
            if found < 0:
                break
            self._text = self._text[found + len(tag) :]
            self._inside = not self._inside
        longest = len(tag) - 1
        while longest and not self._text.endswith(tag[:longest]):
            longest -= 1
        self._text = tag[:longest]

    def _update(self) -> None:
        beyond = self._used - self._tokens
        if not self._inside or beyond < 0 or self._closing:
            return
        if beyond >= _GRACE or not (self._half or self._text):
            self._closing = self._budget.close_token_ids
            self._text = ""
