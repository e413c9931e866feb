"""How many tokens of a choice are thought."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Piece:
    characters: int
    tokens: int
    is_thought: bool = False


class ThoughtTokens:
    """Counts the tokens whose text is thought, if only in part, its tags included.

    Parsers decide about characters, engines give texts with the tokens that they are made of, so
    this is exact for engines that give the text of each token by itself. Tokens without text
    belong to the text that comes next; at the end they are none of thought.
    """

    def __init__(self) -> None:
        self.count = 0
        self._undecided: deque[_Piece] = deque()

    def add(self, characters: int, tokens: int) -> None:
        """The choice has gained so many tokens, and so many characters by them."""
        last = self._undecided[-1] if self._undecided else None
        if last and not last.characters:
            last.characters, last.tokens = characters, last.tokens + tokens
        else:
            self._undecided.append(_Piece(characters, tokens))

    def settle(self, stretches: Iterable[tuple[int, bool]]) -> None:
        """The next characters are thought, or are not."""
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
