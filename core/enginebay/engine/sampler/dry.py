"""DRY: penalizes tokens that would extend a repeated sequence."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler.logits import Row
from enginebay.engine.sampler.logprobs import TokenText, text_and_bytes

# Repetitions this much longer than what is allowed are penalised no further.
_LONGEST = 256
# No penalty makes a token impossible: it may be the only one that is left.
_MOST = 1e30


class Dry:
    """The tokens of one choice, prompt and completion, and where its sequences break.

    https://github.com/oobabooga/text-generation-webui/pull/5677
    """

    def __init__(
        self,
        params: SamplingParams,
        token_ids: Sequence[int],
        token_text: TokenText,
    ) -> None:
        self._params = params
        self._token_text = token_text
        self._breakers = [text for text in params.dry_sequence_breakers if text]
        self._overlap = max(map(len, self._breakers), default=1) - 1
        last_n = params.dry_penalty_last_n
        window = token_ids[max(0, len(token_ids) - last_n) :] if last_n >= 0 else token_ids
        self._count = len(window)
        self._token_ids: NDArray[np.intp] = np.empty(2 * self._count + 64, np.intp)
        self._token_ids[: self._count] = window
        self._unbroken = self._tokens_since_break()

    def accept(self, token_id: int) -> None:
        """Add a token; it breaks sequences if a breaker ends in its text."""
        if self._count == len(self._token_ids):
            self._token_ids = np.concatenate((self._token_ids, np.empty_like(self._token_ids)))
        self._token_ids[self._count] = token_id
        self._count += 1
        self._unbroken = 0 if self._breaks(self._count - 1) else self._unbroken + 1

    def apply(self, logits: Row) -> Row:
        """Logits after the penalties, `[vocabulary]`; a copy if there are any."""
        lengths = self._repetitions()
        if not lengths:
            return logits
        logits = logits.copy()
        params = self._params
        token_ids = np.array(list(lengths), np.intp)
        beyond = np.array(list(lengths.values()), np.float64) - params.dry_allowed_length
        penalties = np.minimum(params.dry_multiplier * params.dry_base**beyond, _MOST)
        logits[token_ids] -= penalties.astype(np.float32)
        return logits

    def _repetitions(self) -> dict[int, int]:
        """The length of the repetition each token would extend, where already too long."""
        last_n, allowed = self._params.dry_penalty_last_n, self._params.dry_allowed_length
        start = max(0, self._count - last_n) if last_n >= 0 else 0
        token_ids = self._token_ids[start : self._count]
        found: dict[int, int] = {}
        if not allowed:
            found = dict.fromkeys(token_ids[1:].tolist(), 0)
        longest = min(self._unbroken, len(token_ids) - 1, allowed + _LONGEST - 1)
        if longest < 1:
            return found
        ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])  # of earlier occurrences
        for length in range(1, longest + 1):
            if length > 1:
                ends = ends[ends >= length - 1]
                ends = ends[token_ids[ends - length + 1] == token_ids[-length]]
            if not len(ends):
                break
            if length >= allowed:
                found |= dict.fromkeys(token_ids[ends + 1].tolist(), length)
        return found

    def _tokens_since_break(self) -> int:
        """The number of tokens since the last break, up to the most that can repeat."""
        most = min(self._count, self._params.dry_allowed_length + _LONGEST)
        places = range(self._count - 1, self._count - 1 - most, -1)
        return next((i for i, place in enumerate(places) if self._breaks(place)), most)

    def _breaks(self, place: int) -> bool:
        """Whether a breaker ends in the token there."""
        if not self._breakers:
            return False
        text, before = self._text(place), ""
        while len(before) < self._overlap and place > 0:
            place -= 1
            before = self._text(place) + before
        starts = ((breaker, max(0, len(before) - len(breaker) + 1)) for breaker in self._breakers)
        return bool(text) and any((before + text).find(*start) >= 0 for start in starts)

    def _text(self, place: int) -> str:
        text, _ = text_and_bytes(self._token_text(int(self._token_ids[place])))
        return text
