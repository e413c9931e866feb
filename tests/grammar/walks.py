"""Random texts that keep to a grammar, byte by byte."""

from collections.abc import Iterable
from random import Random

import numpy as np

from enginebay.contract.grammar import Grammar, Json
from enginebay.grammar.compiler import GrammarCompiler, allowed_tokens
from enginebay.grammar.vocabulary import Vocabulary

END = 256
VOCABULARY = Vocabulary(
    tokens=[*(bytes([i]) for i in range(END)), b"<end>"],
    special_token_ids=frozenset({END}),
    end_token_ids=frozenset({END}),
    encode=lambda text: list(text.encode()),
)
COMPILER = GrammarCompiler(VOCABULARY, threads=1)

_WELCOME = frozenset(b'",:}]')


def random_text(grammar: Grammar, seed: int, most: int = 300) -> str | None:
    """A text that keeps to a grammar, or None if it does not end soon.

    In JSON it leans to the bytes that end something, or it hardly would.
    """
    random, matcher, text = Random(seed), COMPILER.matcher(grammar), bytearray()
    for _ in range(most):
        (mask,) = COMPILER.fill([matcher])
        allowed = [int(i) for i in np.flatnonzero(allowed_tokens(mask, END + 1))]
        assert allowed, (matcher.error, bytes(text))
        ending = [i for i in allowed if i == END or i in _WELCOME]
        leaning = isinstance(grammar, Json) and ending and random.random() < 0.5
        token = random.choice(ending if leaning else allowed)
        if token == END:
            return text.decode()
        assert matcher.accept(token)
        text.append(token)
        if matcher.finished:
            return text.decode()
    return None


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a whole text keeps to a grammar."""
    matcher = COMPILER.matcher(grammar)
    return all(map(matcher.accept, text.encode())) and matcher.satisfied


def texts(grammar: Grammar, seeds: Iterable[int]) -> list[str]:
    """The texts of these seeds that end."""
    return [text for seed in seeds if (text := random_text(grammar, seed)) is not None]
