"""Tokenizing methods shared by engines with a tokenizer."""

from collections.abc import Sequence
from typing import Protocol

from enginebay.contract.engine import Engine
from enginebay.engine.batching.limits import RequestLimits


class Tokenizer(Protocol):
    """Text to tokens and back, from any thread; special tokens are text."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Special tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def encode_plain(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class TokenizingEngine(Engine):
    """An engine with a tokenizer; its `limits` give the vocabulary size."""

    _tokenizer: Tokenizer

    def __init__(self, tokenizer: Tokenizer, limits: RequestLimits) -> None:
        self._tokenizer = tokenizer
        self._special_token_ids = tokenizer.special_token_ids
        self._limits = limits

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        self._limits.check_tokens(token_ids, "tokens")
        return self._tokenizer.decode(token_ids)

    def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode_plain(text, add_special_tokens=add_special_tokens)

    def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        return self.detokenize([i for i in token_ids if i not in self._special_token_ids])
