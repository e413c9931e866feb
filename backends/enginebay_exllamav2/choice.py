"""One choice of a request, across the library's jobs that run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from enginebay import (
    ChoiceState,
    Delta,
    InvalidRequestError,
    Mask,
    Row,
    RowLogprobs,
    RowSampler,
    Sampled,
    TokenLogprob,
    TokenText,
)
from enginebay_exllamav2.healing import Healing
from enginebay_exllamav2.masks import MaskFilter

_MOST_TRIES = 1000
"""Tokens rolled back at one position before a request with banned strings fails."""


@dataclass(slots=True, eq=False)
class LibraryChoice(ChoiceState[RowSampler]):
    """It outlives its jobs: one that is preempted or lost is followed by another.

    `held` are tokens that may begin a banned string; they are not part of the completion
    yet. `token_text` is for logprobs. `embeddings` are the library's, with the place of each in the
    prompt; all choices of a picture have the same one.
    """

    token_text: TokenText = str
    filter: MaskFilter | None = None
    healing: Healing | None = None
    held: list[Sampled] = field(default_factory=list)
    embeddings: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def sequence(self) -> list[int]:
        """The tokens that a new job begins with, those of pictures by the library's ids."""
        token_ids = list(self.token_ids)
        for start, embedding in self.embeddings:
            token_ids[start : start + embedding.length] = embedding.get_ids()
        if self.healing:
            del token_ids[len(self.request.prompt_token_ids) - 1]
        return token_ids

    @property
    def said(self) -> int:
        """How many tokens the completion has."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    def next_token(self, row: Row, usable: int, banned: list[int]) -> tuple[Sampled, bool]:
        """The next token by the model's logits `[vocabulary]`, and whether it is forced.

        Of the vocabulary the tokenizer knows the first `usable` tokens. `banned`: tokens that were
        rolled back at this position. On any thread.
        """
        if (forced := self.completion.forced) is not None:
            if self.filter:
                self.filter.drop()
            return Sampled(forced, self._logprob(row, forced)), True
        mask: Mask | None = None
        if self.filter:
            mask = self.filter.take()
        elif self.healing and not self.said and not self.held:
            mask = self.healing.mask
        if len(banned) > _MOST_TRIES:
            raise InvalidRequestError(
                "banned_strings leave the model no token to generate", param="banned_strings"
            )
        token_id = self.sampler.sample(row[:usable], mask, banned)
        return Sampled(token_id, self._logprob(row, token_id)), False

    def hold(self, sampled: Sampled) -> None:
        """Hold a token that may be rolled back."""
        self.held.append(sampled)
        self.sampler.accept(sampled.token_id)

    def take_back(self, kept: int) -> None:
        """Drop all held tokens but the first ones."""
        if kept < len(self.held):
            del self.held[kept:]
            said = self.token_ids[len(self.request.prompt_token_ids) :]
            self.sampler.restart([*said, *(sampled.token_id for sampled in self.held)])

    def release(self) -> list[Delta]:
        """The held tokens become tokens of the completion, as far as it goes."""
        deltas = []
        held, self.held = self.held, []
        for sampled in held:
            if not self.finished:
                deltas.append(self.append(sampled))
        return deltas

    def _logprob(self, row: Row, token_id: int) -> TokenLogprob | None:
        top = self.request.sampling.logprobs
        return None if top is None else RowLogprobs(row, top).of(token_id, self.token_text)
