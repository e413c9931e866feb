"""Counts the reasoning tokens of a choice."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Piece:
    characters: int
    tokens: int
    is_thought: bool = False


class ThoughtTokens:
    """Counts the tokens whose text is at least partly reasoning, including its tags.

    Parsers classify characters, and engines return texts with their tokens, so the count is exact
    for engines that return the text of each token separately. Tokens without text belong to the
    text that follows; at the end they do not count as reasoning.
    """

    def __init__(self) -> None:
        self.count = 0
        self._undecided: deque[_Piece] = deque()

    @property
    def decided(self) -> bool:
        """Whether it is known of all tokens so far."""
        return not self._undecided

    def add(self, characters: int, tokens: int) -> None:
        """The choice has gained this many tokens with this many characters."""
        last = self._undecided[-1] if self._undecided else None
        if last and not last.characters:
            last.characters, last.tokens = characters, last.tokens + tokens
        else:
            self._undecided.append(_Piece(characters, tokens))

    def settle(self, stretches: Iterable[tuple[int, bool]]) -> None:
        """The next characters are reasoning, or are not."""
        for characters, is_thought in stretches:
            if len(self._undecided) == 1 and self._undecided[0].characters == characters:
                piece = self._undecided.pop()
                self.count += piece.tokens if is_thought or piece.is_thought else 0
                continue
            while characters and self._undecided:
                piece = self._undecided[0]
                decided = min(characters, piece.characters)
                piece.characters -= decided
                characters -= decided
                piece.is_thought |= is_thought
                if not piece.characters:
                    self._undecided.popleft()
                    self.count += piece.tokens if piece.is_thought else 0
