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
        self._words = sorted(
            word for word in words if word.isalpha() and self.count(f" {word}") == 1
        )

    def make(self, amount: int, tokens: int, seed: str) -> list[str]:
        """`amount` texts of `tokens` tokens each; the same seed gives the same texts."""
        generator = random.Random(seed)
        return [self._text(generator, tokens) for _ in range(amount)]

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _text(self, generator: random.Random, tokens: int) -> str:
        text = "".join(f" {word}" for word in generator.choices(self._words, k=tokens))
        if (made := self.count(text)) != tokens:
            raise ValueError(f"this tokenizer makes {made} tokens of {tokens} words")
        return text
