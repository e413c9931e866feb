"""Token healing: the last token of a prompt is sampled again, among those that begin with its text.

Otherwise a prompt that ends inside a longer token keeps the model from that token.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enginebay import Detokenizer, Mask
from enginebay_checkpoint.tokenizer import Tokenizer

_CONTEXT = 8  # tokens before the healed one, by which its text is told


class TokenPrefixes:
    """Which tokens begin with a text. `pieces` are the texts of all tokens, empty for special
    ones.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        named = sorted((piece, token_id) for token_id, piece in enumerate(pieces) if piece)
        self._sorted = [piece for piece, _ in named]
        self._token_ids = np.array([token_id for _, token_id in named], np.intp)

    def mask(self, token_id: int, banned_strings: Sequence[str] = ()) -> Mask | None:
        """The tokens that begin with this one's text; None for one without whole characters.

        Without those that add a banned string to it, or what may begin one: a healed token is not
        taken back.
        """
        piece = self._pieces[token_id] if token_id < len(self._pieces) else ""
        if not piece or "\ufffd" in piece:
            return None
        start, end = bisect_left(self._sorted, piece), len(self._sorted)
        while start < end:  # the last that begins with it
            middle = (start + end) // 2
            if self._sorted[middle].startswith(piece):
                start = middle + 1
            else:
                end = middle
        start = bisect_left(self._sorted, piece)
        found = self._token_ids[start:end]
        if banned_strings:
            added = [text[len(piece) :].lower() for text in self._sorted[start:end]]
            banned = [text.lower() for text in banned_strings]
            found = found[[not any(_may_begin(text, each) for each in banned) for text in added]]
        allowed = np.zeros((len(self._pieces) + 31) // 32 * 32, np.uint8)
        allowed[found] = 1
        return np.packbits(allowed, bitorder="little").view(np.int32)


def _may_begin(text: str, banned: str) -> bool:
    """Whether a text contains a banned string, or ends with the beginning of one."""
    ends = range(1, min(len(text), len(banned)) + 1)
    return banned in text or any(text.endswith(banned[:length]) for length in ends)


@dataclass(frozen=True, slots=True)
class Healing:
    """How a prompt ends: `mask` are the tokens that may take the place of its last one."""

    mask: Mask
    prompt_token_ids: tuple[int, ...]

    def detokenizer(self, tokenizer: Tokenizer) -> "HealedText":
        """For the completion that begins with the healed token."""
        return HealedText(tokenizer, self.prompt_token_ids)


class HealedText:
    """The text of a completion, without the part of its first token that the prompt already has."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> None:
        context, last = prompt_token_ids[-_CONTEXT:-1], prompt_token_ids[-1:]
        self._detokenizer = Detokenizer(tokenizer.decode)
        for token_id in context:
            self._detokenizer.feed(token_id)
        known = tokenizer.decode(context)
        self._cut = len(tokenizer.decode((*context, *last))) - len(known)

    def feed(self, token_id: int) -> str:
        """The characters this token completes."""
        return self._without_known(self._detokenizer.feed(token_id))

    def finish(self) -> str:
        """What is left of a character that was never completed."""
        return self._without_known(self._detokenizer.finish())

    def _without_known(self, text: str) -> str:
        cut = min(self._cut, len(text))
        self._cut -= cut
        return text[cut:]
