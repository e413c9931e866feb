"""What the samplers of all choices share: the vocabulary, work space, and DRY's preparation."""

import ctypes
from functools import cached_property, lru_cache
from typing import Any

from backends.llamacpp import sampler_calls as calls
from backends.llamacpp.candidates import Candidates
from backends.llamacpp.library import address, llama
from enginebay import InvalidRequestError

_PREPARED = 4


class Vocabulary:
    """A model's vocabulary as samplers need it; to be used on one thread.

    `context_length` bounds how far samplers look back. Its native memory is freed with it.
    """

    def __init__(self, vocab: Any, context_length: int) -> None:
        self.vocab = vocab
        self.context_length = context_length
        self.size: int = llama.llama_vocab_n_tokens(vocab)
        self._dry = lru_cache(_PREPARED)(self._prepare_dry)

    @cached_property
    def candidates(self) -> Candidates:
        """Room for every token, for whichever sampler is at work."""
        return Candidates(self.size)

    def dry(
        self, multiplier: float, base: float, allowed_length: int, last_n: int, *breakers: str
    ) -> int:
        """The address of a new DRY sampler that has seen no token; the caller frees it.

        Preparing one goes through the whole vocabulary, so the last few are kept to be cloned.
        """
        prepared = self._dry(multiplier, base, allowed_length, last_n, *breakers)
        return int(calls.clone(prepared.address))

    def _prepare_dry(
        self, multiplier: float, base: float, allowed_length: int, last_n: int, *breakers: str
    ) -> "_Owned":
        try:
            texts = [breaker.encode() for breaker in breakers]
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"a sequence breaker is not valid Unicode: {error}", param="dry_sequence_breakers"
            ) from error
        return _Owned(
            llama.llama_sampler_init_dry(
                self.vocab,
                multiplier,
                base,
                min(allowed_length, self.context_length),
                min(last_n, self.context_length) if last_n >= 0 else self.context_length,
                (ctypes.c_char_p * len(texts))(*texts),
                len(texts),
            )
        )


class _Owned:
    """A native sampler that is freed with this."""

    def __init__(self, pointer: Any) -> None:
        self.address = address(pointer)

    def __del__(self) -> None:
        calls.free(self.address)
