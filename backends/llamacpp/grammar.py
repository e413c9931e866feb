"""GBNF grammars. llama.cpp ends the process when told of a token the grammar forbids: never do."""

import re

import numpy as np

from backends.llamacpp import sampler_calls as calls
from backends.llamacpp.candidates import Candidates, Row
from backends.llamacpp.library import address, llama
from backends.llamacpp.vocabulary import Vocabulary
from enginebay import InvalidRequestError

_ROOT = b"root"
_LITERALS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*', re.DOTALL)
_DEEPEST = 200  # llama.cpp's parser calls itself for every parenthesis


class Grammar:
    """Where one completion stands in a grammar; `close()` frees it."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        """`InvalidRequestError` for a grammar that cannot be used."""
        self._vocabulary = vocabulary
        self._one = Candidates(1)
        pointer = llama.llama_sampler_init_grammar(vocabulary.vocab, _checked(text), _ROOT)
        if not pointer:
            raise InvalidRequestError(
                "the grammar is not valid GBNF, has no rule root, or is left-recursive",
                param="grammar",
            )
        self._sampler: int | None = address(pointer)

    def allows(self, token_id: int) -> bool:
        """Whether the completion may go on with this token."""
        return self._sampler is not None and self._one.allows(self._sampler, token_id)

    def mask(self, logits: Row) -> Row:
        """`logits` with minus infinity for tokens that are not allowed."""
        if self._sampler is None:
            return np.full_like(logits, -np.inf)
        return self._vocabulary.candidates.mask(self._sampler, logits)

    def accept(self, token_id: int) -> None:
        """Go on by a token. After one that is not allowed, none is."""
        if self.allows(token_id):
            calls.accept(self._sampler, token_id)
        else:
            self.close()

    def close(self) -> None:
        """Free it; no token is allowed any more."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            calls.free(sampler)


def _checked(text: str) -> bytes:
    """What llama.cpp's parser can read without harm."""
    depth = deepest = 0
    for bracket in re.findall("[()]", _LITERALS.sub("", text)):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    if deepest > _DEEPEST or "\0" in text:
        raise InvalidRequestError(
            f"the grammar nests more than {_DEEPEST} groups, or has a zero byte", param="grammar"
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the grammar is not valid Unicode: {error}", param="grammar"
        ) from error
