"""Prompts of an exact number of tokens, different in every measurement so that no cache helps."""

import random
from pathlib import Path

from tokenizers import Tokenizer


class Prompts:
    """Texts of random words out of a model's vocabulary."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        decoded = (self._tokenizer.decode([i]) for i in range(self._tokenizer.get_vocab_size()))
        words = {word.strip() for word in decoded if word.strip().isascii()}
        self._words = sorted(word for word in words if word.isalpha() and self._count(word) == 1)

    def make(self, amount: int, tokens: int, seed: str) -> list[str]:
        """`amount` texts of `tokens` tokens each; the same seed gives the same texts."""
        generator = random.Random(seed)
        return [self._text(generator, tokens) for _ in range(amount)]

    def _text(self, generator: random.Random, tokens: int) -> str:
        words = generator.choices(self._words, k=tokens)
        missing = tokens - self._count(*words)
        if missing:
            raise ValueError(f"this tokenizer makes {tokens - missing} tokens of {tokens} words")
        return " ".join(["", *words])

    def _count(self, *words: str) -> int:
        return len(self._tokenizer.encode(" ".join(["", *words])).ids)
