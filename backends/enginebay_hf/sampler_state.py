"""The sampling state of a row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from enginebay import RowSampler, SamplingParams, is_plain, seeded_random


@dataclass(slots=True, eq=False)
class SamplerState:
    """The sampling params of one row, its tokens so far and its own random numbers.

    `end_token_ids` are the tokens that end the completion. `row_sampler` chooses the tokens on a
    CPU, and on a GPU unless the row is sampled `together` with others (`is_sampled_together`).
    Either way the random numbers follow from the seed and the choice's index alone, so that other
    rows in the batch change nothing.
    """

    params: SamplingParams
    prompt_token_ids: tuple[int, ...] = ()
    index: int = 0
    end_token_ids: frozenset[int] = frozenset()
    row_sampler: RowSampler | None = None
    together: bool = False
    tokens: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    _random: Random = field(init=False)
    _prompt_tokens: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._random = seeded_random(self.params, self.index)

    def append(self, token_id: int) -> None:
        """Note a sampled token."""
        self.tokens += 1
        self.counts[token_id] += 1
        if self.row_sampler:
            self.row_sampler.accept(token_id)

    def restart(self, token_ids: Sequence[int]) -> None:
        """Replace the tokens so far."""
        self.tokens = len(token_ids)
        self.counts = Counter(token_ids)
        if self.row_sampler:
            self.row_sampler.restart(token_ids)

    def uniform(self) -> float:
        """The row's next random number, from 0 to below 1."""
        return self._random.random()

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, without chance."""
        return self.params.temperature <= 0

    @property
    def must_go_on(self) -> bool:
        """Whether `min_tokens` forbids the tokens that end the completion."""
        return self.tokens < self.params.min_tokens

    @property
    def changes_logits(self) -> bool:
        """Whether sampling goes by anything but the model's own logits."""
        params = self.params
        return bool(
            params.repetition_penalty != 1
            or params.presence_penalty
            or params.frequency_penalty
            or params.logit_bias
            or params.allowed_token_ids
            or self.must_go_on
        )

    def seen_tokens(self) -> Tensor:
        """The distinct tokens of the prompt, then those of the completion; on the CPU."""
        if self._prompt_tokens is None:
            self._prompt_tokens = torch.tensor(sorted(set(self.prompt_token_ids)), dtype=torch.long)
        return torch.cat((self._prompt_tokens, torch.tensor(list(self.counts), dtype=torch.long)))


def is_sampled_together(params: SamplingParams) -> bool:
    """Whether a GPU can sample such a row, in the same operations as others."""
    penalties = (
        params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
    )
    if params.dry_multiplier or (penalties and params.penalty_last_n >= 0):
        return False
    return params.temperature <= 0 or is_plain(params)
