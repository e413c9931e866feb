"""What a script says, kept to a grammar."""

import string
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter

import numpy as np

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.grammar import Choice, Free, Grammar, Repeat, Sequence, Text, UpTo
from enginebay.grammar.compiler import GrammarCompiler, allowed_tokens
from enginebay.grammar.vocabulary import Vocabulary

_END = 256
_OPEN = b"\0"
_UNUSED = {0x00, 0xC0, 0xC1, *range(0xF5, 0x100)}  # no text in UTF-8 has these, but for the first
_SPACE = string.whitespace.encode()
_WORDS = (string.digits + string.ascii_letters).encode()


def utf8_compiler() -> GrammarCompiler:
    """Compiles grammars for the bytes of UTF-8: a vocabulary of all characters, but small."""
    tokens = [b"" if byte in _UNUSED else bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary(
        tokens=[*tokens, b"\0"],
        special_token_ids=frozenset({_END}),
        end_token_ids=frozenset({_END}),
        encode=lambda text: text.encode(errors="replace"),
    )
    return GrammarCompiler(vocabulary, threads=1)


class Constrained:
    """The characters of a script that a grammar allows, and those that it wants besides.

    A character that is not allowed waits for its turn. Meanwhile come others that are: those of a
    short text that the grammar spells out, else what closes strings and brackets, so that answers
    end. Where the grammar may end they do not come; that is the end of the text then.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        grammar: Grammar,
        script: Iterable[str],
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        self._compiler = compiler
        self._matcher = compiler.matcher(grammar)
        self._script = chain.from_iterable(script)
        self._stop = {chr(token_id).encode() for token_id in stop_token_ids}
        self._waiting = self._read()
        self._spelled = _spelled(grammar).encode()
        self._filled_in: Counter[int] = Counter()
        self._quoted = False
        self._seconds = 0.0

    @property
    def satisfied(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.satisfied

    @property
    def finished(self) -> bool:
        """Whether the text can only end here."""
        return self._matcher.finished

    def take_seconds(self) -> float:
        """The time spent on the grammar since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def __iter__(self) -> Iterator[str]:
        """The text, character by character. `InvalidRequestError` if the grammar gets stuck."""
        while not self.finished:
            start = perf_counter()
            if self._waiting in self._stop and self.satisfied:
                said = self._waiting  # ends the text, and is not part of it
            else:
                said = self._character()
            self._seconds += perf_counter() - start
            if said == self._waiting:
                self._waiting = self._read()
            if not said:
                return
            yield said.decode(errors="replace")

    def _read(self) -> bytes:
        """The script's next character, nothing when it has ended."""
        return next(self._script, "").encode(errors="replace")

    def _character(self) -> bytes:
        """The next character, the one that waits if it is allowed; nothing if the text ends."""
        said = b""
        while not said or len(said) < _length(said[0]):
            allowed = self._allowed()
            wanted = self._waiting[len(said)] if self._waits(said) else _END
            if wanted not in allowed:
                if not said and self.satisfied:
                    return b""
                wanted = self._fill_in(allowed)
            self._spelled = self._spelled.removeprefix(bytes([wanted]))
            if not self._matcher.accept(wanted) or self._matcher.error:
                raise self._stuck()
            said += bytes([wanted])
        return said

    def _waits(self, said: bytes) -> bool:
        """Whether the character that waits may be the next, of which this much has been said."""
        may_stop = self._waiting not in self._stop or self.satisfied
        return may_stop and self._waiting.startswith(said) and self._waiting != said

    def _allowed(self) -> set[int]:
        mask = self._compiler.fill([self._matcher])[0]
        allowed = set(np.flatnonzero(allowed_tokens(mask, _END)).tolist())
        if not (allowed or self.satisfied):
            raise self._stuck()
        return allowed

    def _stuck(self) -> InvalidRequestError:
        reason = self._matcher.error or "no token may follow"
        message = f"the grammar cannot be followed: {reason}"
        return InvalidRequestError(message, param="constraint")

    def _fill_in(self, allowed: set[int]) -> int:
        spelled = self._spelled.lstrip(_OPEN)[:1]
        if not self._spelled.startswith(_OPEN) and set(spelled) & allowed:
            return spelled[0]
        in_a_string = set(b"{}") <= allowed
        for closing in b'"' if in_a_string else b'}]",':  # a comma: what may not close yet goes on
            if closing in allowed and not (in_a_string and self._quoted):
                self._quoted = in_a_string  # which was none if it is not closed by that
                return closing
        if set(spelled) & allowed:
            self._spelled = self._spelled.lstrip(_OPEN)
            return spelled[0]
        byte = min(allowed, key=self._rank)
        self._filled_in[byte] += 1
        return byte

    def _rank(self, byte: int) -> tuple[bool, int, int, bool, int]:
        """Nothing is opened without need, nothing repeated for ever."""
        filled_in = self._filled_in[byte]
        return byte in _SPACE, b"{[<".find(byte), filled_in, byte not in _WORDS, byte


def _spelled(grammar: Grammar) -> str:
    """The fixed parts of a short text that matches a grammar, with `_OPEN` for what is not."""
    match grammar:
        case Text(text):
            return text
        case Sequence(items):
            return "".join(map(_spelled, items))
        case Choice(items):
            return _spelled(items[0])
        case Repeat(item, least):
            return _spelled(item) * least
        case UpTo(end):
            return end
        case Free():
            return ""
    return _OPEN.decode()


def _length(first: int) -> int:
    """Bytes of a character in UTF-8, by its first one."""
    return 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
