"""A model's vocabulary for the grammar engine."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from llguidance import LLTokenizer, TokenizerWrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The vocabulary: what each token id stands for.

    `tokens`: the bytes of each id, of a special token its text; empty for ids that are never
    sampled. `special_token_ids`: tokens that text which looks like them never stands for.
    `end_token_ids`: those that end a completion. `encode`: text to tokens without any in front,
    from any thread.
    """

    tokens: Sequence[bytes]
    special_token_ids: frozenset[int]
    end_token_ids: frozenset[int]
    encode: Callable[[str], Sequence[int]]

    @classmethod
    def from_tokenizer_json(
        cls,
        source: str,
        *,
        vocab_size: int,
        end_token_ids: Iterable[int],
        special_token_ids: Iterable[int] = (),
    ) -> Self:
        """The vocabulary of a `tokenizer.json`, of which `source` is the text.

        `vocab_size` is the width of the logits, which need not be that of the tokenizer.
        `special_token_ids` come on top of those that are marked as special there. `ValueError` for
        a tokenizer whose tokens do not stand for certain bytes.
        """
        reader = LLTokenizer(source, slices=[])
        described = json.loads(source)
        added = described.get("added_tokens") or ()
        vocab = described["model"]["vocab"]  # ids by token, or a list of tokens and their scores
        known = set(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))
        known.update(token["id"] for token in added)
        special = {token["id"] for token in added if token["special"]}.union(special_token_ids)
        return cls(
            tokens=[reader.decode_bytes([i]) if i in known else b"" for i in range(vocab_size)],
            special_token_ids=frozenset(i for i in special if i < vocab_size),
            end_token_ids=frozenset(i for i in end_token_ids if i < vocab_size),
            encode=reader.tokenize_str,
        )

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens by their text, with those that end a completion."""
        ids = sorted(self.special_token_ids | self.end_token_ids)
        return {text: i for i in ids if (text := self.tokens[i].decode(errors="ignore"))}


class _Wrapped:
    """A vocabulary in the form that `TokenizerWrapper` reads."""

    def __init__(self, vocabulary: Vocabulary, end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = None
        # A first byte of FF would mark a token as special; no text contains this byte.
        self.tokens = [b"" if token[:1] == b"\xff" else token for token in vocabulary.tokens]
        if end == len(self.tokens):
            self.tokens.append(b"<no end>")
        self.special_token_ids = sorted(vocabulary.special_token_ids | {end})
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return list(self._encode(text))


def grammar_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """llguidance's view of a vocabulary. A model without an end token gets an unsampled one."""
    ends = sorted(vocabulary.end_token_ids) or [len(vocabulary.tokens)]
    wrapped = TokenizerWrapper(_Wrapped(vocabulary, ends[0]))
    # In two parts, since each keeps all other threads of the process waiting.
    bare = LLTokenizer(wrapped, n_vocab=len(wrapped.tokens), eos_token=ends, slices=[])
    wrapped.tokens = wrapped._gtokenizer.tokens = []  # it keeps the wrapper, for `encode`
    return bare.with_slices(LLTokenizer.general_slices())
