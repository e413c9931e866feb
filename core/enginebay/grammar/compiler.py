"""Compiles grammars for a vocabulary and tracks completions through them."""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay.contract.grammar import Grammar
from enginebay.grammar.check import first_problem
from enginebay.grammar.lark import to_lark
from enginebay.grammar.vocabulary import Vocabulary, grammar_tokenizer

Masks = NDArray[np.int32]
"""Bits, `[choices, (vocabulary + 31) // 32]`: bit `i % 32` of word `i // 32` allows token `i`."""

logger = logging.getLogger(__name__)

_REMEMBERED = 256
_REMEMBERED_CHARACTERS = 8_000_000  # of Lark; a compiled grammar takes several times its length


class Matcher:
    """Follows one completion through a grammar, token by token. One thread at a time."""

    def __init__(self, matcher: LLMatcher, end_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids

    @property
    def satisfied(self) -> bool:
        """Whether the completion may end here."""
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        """Whether the completion can only end here."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the grammar cannot continue (it is too complex here); empty while it can."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; False if the grammar does not allow it, or may not end yet."""
        if token_id in self._end_token_ids and self.satisfied:
            return True
        return self._matcher.consume_token(token_id)

    def allows(self, token_id: int) -> bool:
        """Whether `accept` would take this token, which must not be an end token."""
        return self._matcher.validate_tokens([token_id]) == 1

    def finish_mask(self, mask: NDArray[np.int32]) -> None:
        """Set the end tokens in its row: allowed if the completion may end, else forbidden."""
        bits = mask.view(np.uint32)
        satisfied = self.satisfied
        if not satisfied:
            kept = bits.copy()
        for token_id in self._end_token_ids:
            bit = np.uint32(1 << token_id % 32)
            if satisfied:
                bits[token_id // 32] |= bit
            else:
                bits[token_id // 32] &= ~bit
        if not satisfied and not bits.any():  # a stop token of the request that has to come here
            bits[:] = kept

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer would write them; often none.

        They have not been accepted.
        """
        tokens = self._matcher.compute_ff_tokens()
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else []


@dataclass(frozen=True, slots=True)
class _Known:
    """A vocabulary that the grammar engine has read. `words`: the width of a row of masks."""

    tokenizer: LLTokenizer
    special_tokens: dict[str, int]
    end_token_ids: frozenset[int]
    words: int


class GrammarCompiler:
    """Compiles grammars for a model's vocabulary and caches recent ones.

    The first grammar reads the vocabulary, which takes about a second for 262,144 tokens.

    `compile` and `matcher` may be called from any thread, `fill` from one at a time.
    """

    def __init__(
        self, vocabulary: Vocabulary | Callable[[], Vocabulary], *, threads: int | None = None
    ) -> None:
        """`vocabulary`: the vocabulary, or a function that returns it, for the first grammar.

        `threads`: how many fill masks.
        """
        self._vocabulary = vocabulary
        self._read: _Known | str | None = None
        self._reading = threading.Lock()
        self._executor = LLExecutor(threads)
        self._compiled: OrderedDict[Grammar, tuple[LLMatcher, int]] = OrderedDict()
        self._lock = threading.Lock()

    def read_vocabulary(self) -> None:
        """Read the vocabulary now, if no grammar has needed it yet.

        `UnsupportedParameterError`, also for each grammar, if it cannot handle the vocabulary.
        """
        self._known()

    def compile(self, grammar: Grammar) -> float:
        """Compile a grammar; returns how many seconds that took.

        `InvalidRequestError` for one that cannot be compiled.
        """
        start = perf_counter()
        self._prepared(grammar)
        return perf_counter() - start

    def matcher(self, grammar: Grammar, end_token_ids: frozenset[int] = frozenset()) -> Matcher:
        """A matcher for one choice; `end_token_ids` may end it, too."""
        matcher = self._prepared(grammar).deep_copy()
        return Matcher(matcher, self._known().end_token_ids | end_token_ids)

    def tokenize(self, text: str) -> list[int]:
        """Tokens that spell a text, none of them special."""
        return self._known().tokenizer.tokenize_str(text)

    def fill(self, matchers: Sequence[Matcher]) -> Masks:
        """Fill the masks of the next allowed tokens. Releases the GIL meanwhile."""
        known = self._known()
        masks = np.zeros((len(matchers), (known.tokenizer.vocab_size + 31) // 32), np.int32)
        places = [(matcher._matcher, place) for place, matcher in enumerate(matchers)]
        if places:
            fill_next_token_bitmask_par(self._executor, places, masks)
        for mask, matcher in zip(masks, matchers, strict=True):
            matcher.finish_mask(mask)
        return masks[:, : known.words]

    def _known(self) -> _Known:
        with self._reading:
            if self._read is None:
                self._read = _read(self._vocabulary)
        if isinstance(self._read, str):
            raise UnsupportedParameterError(self._read, param="constraint")
        return self._read

    def _prepared(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            if found := self._compiled.get(grammar):
                self._compiled.move_to_end(grammar)
                return found[0]
        known = self._known()
        lark = to_lark(grammar, known.special_tokens, known.end_token_ids)
        source = LLMatcher.grammar_from_lark(lark)
        limits = LLParserLimits(verbose_errors=False)
        compiled = LLMatcher(known.tokenizer, source, log_level=0, limits=limits)
        compiled.compute_bitmask()  # some grammars turn out only now to have no beginning
        if compiled.is_error():
            problem = re.sub(r"^at \d+\(\d+\): ", "", first_problem(compiled.get_error()))
            message = f"the grammar cannot be compiled: {problem}"
            raise InvalidRequestError(message, param="constraint")
        with self._lock:
            self._compiled[grammar] = compiled, len(lark)
            self._forget()
        return compiled

    def _forget(self) -> None:
        """Evict the least recently used, but never the last one."""
        characters = sum(length for _, length in self._compiled.values())
        while len(self._compiled) > _REMEMBERED or characters > _REMEMBERED_CHARACTERS:
            if len(self._compiled) == 1:
                break
            _, (_, length) = self._compiled.popitem(last=False)
            characters -= length


def _read(vocabulary: Vocabulary | Callable[[], Vocabulary]) -> _Known | str:
    """The vocabulary as grammars need it, or why there are none."""
    start = perf_counter()
    try:
        made = vocabulary if isinstance(vocabulary, Vocabulary) else vocabulary()
        tokenizer = grammar_tokenizer(made)
    except ValueError as error:
        message = f"this model's vocabulary does not support constrained decoding: {error}"
        logger.warning("%s", message)
        return message
    logger.debug("vocabulary read for grammars in %.2f s", perf_counter() - start)
    words = (len(made.tokens) + 31) // 32
    return _Known(tokenizer, made.special_tokens, made.end_token_ids, words)


def allowed_tokens(mask: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """One row of `Masks` as booleans `[vocab_size]`."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size)
    return bits.view(np.bool_)
