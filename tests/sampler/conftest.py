"""Samplers that take note of what they choose, over a vocabulary of 3,072 tokens."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from enginebay import Mask, Row, RowSampler, SamplingParams

SIZE = 3072
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7}
GREEDY: dict[str, Any] = {"temperature": 0.0}


def text(token_id: int) -> str:
    """A letter each; token 10 is a new line."""
    return "\n" if token_id == 10 else chr(0x4E00 + token_id)


class Choosing(RowSampler):
    """Takes note of its tokens, as runners do."""

    def sample(self, row: Row, mask: Mask | None = None, banned: Sequence[int] = ()) -> int:
        token_id = super().sample(row, mask, banned)
        self.accept(token_id)
        return token_id


class Maker:
    """Makes samplers, and rows and masks for them."""

    def __call__(
        self,
        *completion: int,
        prompt: Sequence[int] = (),
        index: int = 0,
        eos: Collection[int] = (),
        **params: Any,
    ) -> Choosing:
        sampling = SamplingParams(**params)
        ends = set() if sampling.ignore_eos else set(eos)
        sampler = Choosing(
            sampling,
            prompt,
            index,
            end_token_ids=ends.union(sampling.stop_token_ids),
            vocab_size=SIZE,
            token_text=text,
        )
        for token in completion:
            sampler.accept(token)
        return sampler

    def row(self, *logits: float, rest: float = -50.0) -> Row:
        """Logits of the first tokens; the rest is as good as impossible."""
        row = np.full(SIZE, rest, np.float32)
        row[: len(logits)] = logits
        return row

    def random_row(self, seed: int = 0, spread: float = 2.5) -> Row:
        return (np.random.default_rng(seed).standard_normal(SIZE) * spread).astype(np.float32)

    def mask(self, *token_ids: int) -> Mask:
        """Allows these tokens."""
        words = np.zeros((SIZE + 31) // 32, np.uint32)
        for token_id in token_ids:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        return words.view(np.int32)

    def draws(
        self, row: Row, count: int = 300, mask: Mask | None = None, **params: Any
    ) -> Counter[int]:
        """What samplers with different seeds choose first."""
        return Counter(self(**{**params, "seed": seed}).sample(row, mask) for seed in range(count))


@pytest.fixture
def make() -> Maker:
    return Maker()


def softmax(logits: Row) -> Any:
    """Probabilities of a row."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()
