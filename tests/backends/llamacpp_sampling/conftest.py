"""Samplers on the demo model's vocabulary."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from backends.batching.runner import Mask
from backends.llamacpp.library import llama
from backends.llamacpp.samplers import NativeSampler
from backends.llamacpp.vocabulary import Vocabulary
from backends.sampling.row import Row
from demo.to_gguf import convert
from enginebay import SamplingParams
from tests.support import DEMO_MODEL

SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7}
GREEDY: dict[str, Any] = {"temperature": 0.0}


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, path, "f16")
    params = llama.llama_model_default_params()
    params.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    yield Vocabulary(llama.llama_model_get_vocab(model), 2048)
    llama.llama_model_free(model)


class Maker:
    """Makes samplers, and closes them at the end."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.made: list[NativeSampler] = []
        self.ends = frozenset(
            token
            for token in range(vocabulary.size)
            if llama.llama_vocab_is_eog(vocabulary.vocab, token)
        )

    def __call__(
        self,
        *completion: int,
        prompt: Sequence[int] = (),
        index: int = 0,
        eos: Collection[int] = (),
        **params: Any,
    ) -> NativeSampler:
        sampler = NativeSampler(self.vocabulary, SamplingParams(**params), prompt, index, eos)
        self.made.append(sampler)
        for token in completion:
            sampler.accept(token)
        return sampler

    def row(self, *logits: float, rest: float = -50.0) -> Row:
        """Logits of the first tokens; the rest is as good as impossible."""
        row = np.full(self.vocabulary.size, rest, np.float32)
        row[: len(logits)] = logits
        return row

    def random_row(self, seed: int = 0, spread: float = 2.5) -> Row:
        generator = np.random.default_rng(seed)
        return (generator.standard_normal(self.vocabulary.size) * spread).astype(np.float32)

    def mask(self, *token_ids: int) -> Mask:
        """Allows these tokens."""
        words = np.zeros((self.vocabulary.size + 31) // 32, np.uint32)
        for token_id in token_ids:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        return words.view(np.int32)

    def draws(
        self, row: Row, count: int = 300, mask: Mask | None = None, **params: Any
    ) -> Counter[int]:
        """What samplers with different seeds choose first."""
        return Counter(self(**{**params, "seed": seed}).sample(row, mask) for seed in range(count))

    def token(self, text: str) -> int:
        data = text.encode()
        ids = (llama.llama_token * 8)()
        count = llama.llama_tokenize(self.vocabulary.vocab, data, len(data), ids, 8, False, True)
        assert count == 1, text
        return int(ids[0])

    def text(self, token: int) -> str:
        buffer = bytes(64)
        length = llama.llama_token_to_piece(self.vocabulary.vocab, token, buffer, 64, 0, True)
        return buffer[:length].decode()


@pytest.fixture
def make(vocabulary: Vocabulary) -> Iterator[Maker]:
    maker = Maker(vocabulary)
    yield maker
    for sampler in maker.made:
        sampler.close()
        sampler.close()


def softmax(logits: Row) -> Any:
    """Probabilities of a row."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()
