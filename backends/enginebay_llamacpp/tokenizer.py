"""Text to tokens and back, from any thread."""

import codecs
import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from enginebay import InvalidRequestError, Vocabulary
from enginebay_llamacpp.library import (
    llama,
    token_to_piece,
    tokenize,
    vocab_get_attr,
    vocab_is_eog,
)
from enginebay_llamacpp.model import Model

UNBOUNDED = 2**31
"""Characters of the longest token where any amount of text may become one token."""

_EVERY_BYTE = {bytes((value,)) for value in (*range(0xC0), *range(0xC2, 0xF5))}
"""Those that UTF-8 consists of."""

_SWALLOWS_SPACE = llama.LLAMA_TOKEN_ATTR_LSTRIP | llama.LLAMA_TOKEN_ATTR_RSTRIP
_PLAIN_VOCABULARIES = (llama.LLAMA_VOCAB_TYPE_SPM, llama.LLAMA_VOCAB_TYPE_BPE)

_SPECIAL = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN

_HARMONY = {b"<|start|>", b"<|channel|>", b"<|constrain|>", b"<|message|>", b"<|end|>"}
"""Control tokens that llama.cpp treats as words, so that programs print them."""

_MARK = b"\x02"
"""A byte that no token has together with others."""


_PROBE = '{"a": [1,  true]}\n\n\tb'


class Tokenizer:
    """The vocabulary of a model, its tokens as bytes.

    Special tokens written in a text are recognised, and written out when decoded.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.pieces = _pieces(model)
        self.eos_token_ids = frozenset(
            token for token in range(model.vocab_size) if vocab_is_eog(model.vocab_address, token)
        )
        # Where llama.cpp puts a space in front of a text, it comes to stand before the mark.
        spaced = self.decode(self._plain(b"a")) != "a"
        self._mark = _MARK if spaced else b""
        self._mark_tokens = len(self._plain(self._mark))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. `InvalidRequestError` for a lone surrogate."""
        return self._encode(text, add_special_tokens, parse_special=True)

    def encode_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The same, but what looks like a special token is plain text."""
        return self._encode(text, add_special_tokens, parse_special=False)

    def _encode(self, text: str, add_special: bool, *, parse_special: bool) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"the text is not valid Unicode: {error}") from error
        vocab = self._model.vocab
        return _token_ids(llama.llama_tokenize, vocab, data, add_special, parse_special)

    def encode_part(self, text: str) -> list[int]:
        """Token ids of `text` somewhere in a longer one, where special tokens are plain text.

        They spell it, if there is a way, byte by byte where llama.cpp reads another text: U+2581
        is a space to it.
        """
        data = text.encode()
        token_ids = self._plain(self._mark + data)[self._mark_tokens :]
        if b"".join([self.pieces[i] for i in token_ids]) != data and self._bytes.keys() >= {*data}:
            return [self._bytes[value] for value in data]
        return token_ids

    def _plain(self, data: bytes) -> list[int]:
        return _token_ids(tokenize, self._model.vocab_address, data, False, False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, U+FFFD for what is no UTF-8."""
        return b"".join([self.pieces[token] for token in token_ids]).decode(errors="replace")

    def detokenizer(self) -> "Detokenizer":
        """A new one for one completion."""
        return Detokenizer(self.pieces)

    def text(self, token_id: int) -> str:
        """One token as text."""
        return self.pieces[token_id].decode(errors="replace")

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens, the end-of-sequence tokens among them, and the one for the unknown."""
        vocab = self._model.vocab_address
        harmony = _HARMONY if _HARMONY.issubset(self.pieces) else ()
        return self.eos_token_ids | {
            token
            for token, piece in enumerate(self.pieces)
            if vocab_get_attr(vocab, token) & _SPECIAL or piece in harmony
        }

    @cached_property
    def placeholder(self) -> int:
        """A token to stand for what is no token: special, but none that ends a completion."""
        return min(self.special_token_ids - self.eos_token_ids, default=0)

    @cached_property
    def outer_tokens(self) -> tuple[list[int], list[int]]:
        """The tokens that the model wants in front of a prompt and behind it."""
        bare, whole = (self.encode("a", add_special_tokens=outer) for outer in (False, True))
        start = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
        return whole[:start], whole[start + len(bare) :]

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """Tokens that stand for one byte, by that byte."""
        plain = set(range(len(self.pieces))) - self.special_token_ids
        return {self.pieces[i][0]: i for i in sorted(plain) if len(self.pieces[i]) == 1}

    @property
    def vocabulary(self) -> Vocabulary:
        """What grammars are compiled for. `ValueError` if the tokenizer changes texts."""
        if self.decode(self.encode_part(_PROBE)) != _PROBE:
            raise ValueError("its tokenizer alters texts")
        return Vocabulary(
            tokens=self.pieces,
            special_token_ids=self.special_token_ids,
            end_token_ids=self.eos_token_ids,
            encode=self.encode_part,
        )

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that chat templates name, as text."""
        vocab = self._model.vocab
        token_ids = {
            "bos_token": llama.llama_vocab_bos(vocab),
            "eos_token": llama.llama_vocab_eos(vocab),
            "pad_token": llama.llama_vocab_pad(vocab),
            "unk_token": int(self._model.metadata("tokenizer.ggml.unknown_token_id") or -1),
        }
        return {name: self.text(token) for name, token in token_ids.items() if token >= 0}

    @property
    def longest_token(self) -> int:
        """Characters that one token can stand for, at most."""
        vocab = self._model.vocab_address
        swallows = any(
            vocab_get_attr(vocab, token) & _SWALLOWS_SPACE for token in range(len(self.pieces))
        )
        plain = llama.llama_vocab_type(self._model.vocab) in _PLAIN_VOCABULARIES
        if swallows or not plain or not _EVERY_BYTE.issubset(self.pieces):
            return UNBOUNDED  # spaces, or characters it has no token for, may vanish
        return max(map(len, self.pieces))


class Detokenizer:
    """Text of one growing completion; a character is emitted with the token that completes it."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The characters this token completes; U+FFFD for bytes that never will be one."""
        return self._decoder.decode(self._pieces[token_id])

    def finish(self) -> str:
        """U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", True)


def _token_ids(
    call: Callable[..., int], vocab: Any, data: bytes, add_special: bool, parse_special: bool
) -> list[int]:
    room = len(data) + 16
    while True:
        token_ids = (ctypes.c_int32 * room)()
        count = call(vocab, data, len(data), token_ids, room, add_special, parse_special)
        if count >= 0:
            return token_ids[:count]
        room = -count


def _pieces(model: Model) -> tuple[bytes, ...]:
    """The bytes of every token, special ones included."""
    size = 256
    buffer = ctypes.create_string_buffer(size)
    pieces = []
    for token in range(model.vocab_size):
        length = token_to_piece(model.vocab_address, token, buffer, size, 0, True)
        if length < 0:
            size = -length
            buffer = ctypes.create_string_buffer(size)
            length = token_to_piece(model.vocab_address, token, buffer, size, 0, True)
        pieces.append(buffer.raw[:length])
    return tuple(pieces)
