"""DRY: tokens that would go on with a repetition lose some of their logit."""

from collections.abc import Callable, Sequence

import numpy as np

from backends.sampling.row import Row
from enginebay import SamplingParams

# Repetitions this much longer than what is allowed are penalised no further.
_LONGEST = 256


class Dry:
    """The tokens of one choice, prompt and completion, and where its sequences break.

    https://github.com/oobabooga/text-generation-webui/pull/5677
    """

    def __init__(
        self,
        params: SamplingParams,
        token_ids: Sequence[int],
        token_text: Callable[[int], str],
    ) -> None:
        self._params = params
        self._token_text = token_text
        breakers = [text for text in params.dry_sequence_breakers if text]
        self._breakers = breakers
        self._overlap = max(map(len, breakers), default=1) - 1
        self._tail = ""
        self._token_ids: list[int] = []
        self._breaks: list[bool] = []
        last_n = params.dry_penalty_last_n
        for token_id in token_ids[max(0, len(token_ids) - last_n) :] if last_n >= 0 else token_ids:
            self.accept(token_id)

    def accept(self, token_id: int) -> None:
        """Note one more token; it breaks sequences if a breaker ends in its text."""
        self._token_ids.append(token_id)
        text = self._token_text(token_id) if self._breakers else ""
        joined = self._tail + text
        self._breaks.append(bool(text) and any(breaker in joined for breaker in self._breakers))
        self._tail = joined[-self._overlap :] if self._overlap else ""

    def apply(self, logits: Row) -> Row:
        """Logits after the penalties; a copy if there are any."""
        lengths = self._repetitions()
        if not lengths:
            return logits
        logits = logits.copy()
        params = self._params
        token_ids = np.array(list(lengths), np.intp)
        beyond = np.array(list(lengths.values()), np.float64) - params.dry_allowed_length
        logits[token_ids] -= (params.dry_multiplier * params.dry_base**beyond).astype(np.float32)
        return logits

    def _repetitions(self) -> dict[int, int]:
        """How long a repetition each token would go on with, of those too long already."""
        last_n, allowed = self._params.dry_penalty_last_n, self._params.dry_allowed_length
        start = max(0, len(self._token_ids) - last_n) if last_n >= 0 else 0
        token_ids = np.array(self._token_ids[start:], np.intp)
        breaks = self._breaks[start:]
        ends = np.arange(len(token_ids) - 1)  # where an earlier occurrence may end
        found: dict[int, int] = {}
        if not allowed:
            found = dict.fromkeys(token_ids[1:].tolist(), 0)
        for length in range(1, allowed + _LONGEST):
            if length >= len(token_ids) or breaks[-length]:
                break
            ends = ends[ends >= length - 1]
            ends = ends[token_ids[ends - length + 1] == token_ids[-length]]
            if not len(ends):
                break
            if length >= allowed:
                found |= dict.fromkeys(token_ids[ends + 1].tolist(), length)
        return found
