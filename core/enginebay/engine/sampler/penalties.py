"""Changes to individual logits: penalties, bias, and end tokens before `min_tokens`."""

import sys
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler.logits import Row


class LogitChanges:
    """The logit changes of one choice, applied before sampling.

    Repetition counts prompt and completion, as in CTRL (Keskar et al., 2019); presence and
    frequency the completion, as OpenAI has it. The cost is proportional to the tokens seen.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        end_token_ids: Collection[int],
        vocabulary_size: int,
    ) -> None:
        self._params = params
        self._seen = self._said = None
        if params.penalty_last_n != 0:
            last_n = params.penalty_last_n
            if params.repetition_penalty != 1:
                self._seen = _Counts(prompt_token_ids, last_n, vocabulary_size)
            if params.presence_penalty or params.frequency_penalty:
                self._said = _Counts((), last_n, vocabulary_size)
        # A model may have more tokens than its tokenizer: those have no logit here.
        bias = {i: value for i, value in params.logit_bias.items() if i < vocabulary_size}
        self._bias_ids = np.array(list(bias), np.intp)
        self._bias = np.array(list(bias.values()), np.float32)
        allowed = [i for i in params.allowed_token_ids if i < vocabulary_size]
        self._allowed = np.array(allowed, np.intp)
        self._ends = np.array(sorted(i for i in end_token_ids if i < vocabulary_size), np.intp)
        self._ends_forbidden_for = params.min_tokens if end_token_ids else 0

    @property
    def any(self) -> bool:
        """Whether logits are changed, now or after more tokens."""
        changes = (
            self._seen or self._said or self._params.logit_bias or self._params.allowed_token_ids
        )
        return bool(changes) or self._ends_forbidden_for > 0

    def apply(self, logits: Row) -> Row:
        """The changed logits `[vocabulary]`, a copy if needed."""
        if not self.any:
            return logits
        logits = logits.copy()
        if self._seen:
            tokens = self._seen.tokens()
            values, penalty = logits[tokens], np.float32(self._params.repetition_penalty)
            logits[tokens] = np.where(values > 0, values / penalty, values * penalty)
        if self._said:
            tokens = self._said.tokens()
            counts = self._said.counts[tokens].astype(np.float32)
            logits[tokens] -= counts * np.float32(self._params.frequency_penalty) + np.float32(
                self._params.presence_penalty
            )
        logits[self._bias_ids] += self._bias
        if self._ends_forbidden_for > 0:
            logits[self._ends] = -np.inf
        if self._allowed.size:
            allowed = logits[self._allowed]
            logits.fill(-np.inf)
            logits[self._allowed] = allowed
        return logits

    def accept(self, token_id: int) -> None:
        """Record a token of the completion."""
        self._ends_forbidden_for -= 1
        for counts in (self._seen, self._said):
            if counts:
                counts.append(token_id)


class _Counts:
    """How often each token is among the last `last_n`, all of them if that is negative."""

    def __init__(self, token_ids: Sequence[int], last_n: int, vocabulary_size: int) -> None:
        if last_n >= 0:
            token_ids = token_ids[max(0, len(token_ids) - last_n) :]
        token_ids = [i for i in token_ids if i < vocabulary_size]
        self._window = deque(token_ids, min(last_n, sys.maxsize)) if last_n >= 0 else None
        self.counts = np.bincount(np.array(token_ids, np.intp), minlength=vocabulary_size)
        self._tokens = np.flatnonzero(self.counts)

    def append(self, token_id: int) -> None:
        if self._window is not None:
            if len(self._window) == self._window.maxlen:
                self.counts[self._window[0]] -= 1
            self._window.append(token_id)
        if not self.counts[token_id]:
            self._tokens = np.append(self._tokens, token_id)
        self.counts[token_id] += 1

    def tokens(self) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        if self._window is not None:  # some have left it
            self._tokens = self._tokens[self.counts[self._tokens] > 0]
        return self._tokens
