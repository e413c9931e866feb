"""Random walks through grammars: what a model may write that knows nothing.

A walk samples what the masks allow and nothing else, as an engine does.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from enginebay import Grammar, GrammarCompiler, Matcher, Vocabulary, allowed_tokens

_END = "<end of text>"
_PIECES = [
    *("the", " the", " a", " weather", "Oslo", "name", "arguments", "parameters", "null", "true"),
    *("false", "10", "25", ".5", '"}', '"}}', '": ', '", "', '{"', "}}", "}\n", "]}", '"]', "```"),
    *("\n\n", "  ", "</", "<|", "|>", "`<", '\\"', "\\n", "é", "日本", "🙂", "f", "functions."),
]
_LIKELY, _LESS_LIKELY, _UNLIKELY = 40.0, 0.3, 0.05


@dataclass(frozen=True, slots=True)
class Walk:
    """`ended`: the completion ended where the grammar allows it. Else it is cut off."""

    text: str
    ended: bool


class Walker:
    """A vocabulary of bytes, some pieces and the tags of a format, and walks in it."""

    def __init__(self, tags: Iterable[str], *, special: bool, words: Sequence[str] = ()) -> None:
        """`special`: whether the tags are special tokens; else they are tokens like others.

        `words`: more tokens, which are likely.
        """
        pieces = [*_PIECES, *words]
        others = {tag for tag in tags if tag} - set([] if special else pieces)
        texts = [*pieces, *sorted(others), _END]
        self._tokens = [*(bytes([i]) for i in range(256)), *(text.encode() for text in texts)]
        self._end = len(self._tokens) - 1
        first_special = 256 + len(pieces) if special else self._end
        plain = enumerate(self._tokens[:first_special])
        self._plain = sorted(plain, key=lambda pair: len(pair[1]), reverse=True)
        self._weights = np.array([_weight(token) for token in self._tokens])
        self._weights[256 + len(_PIECES) : 256 + len(pieces)] = 5 * _LIKELY
        self.compiler = GrammarCompiler(
            Vocabulary(
                tokens=self._tokens,
                special_token_ids=frozenset(range(first_special, self._end + 1)),
                end_token_ids=frozenset({self._end}),
                encode=self._encode,
            ),
            threads=1,
        )

    def walks(self, grammar: Grammar, seeds: Sequence[int], *, most: int = 400) -> list[Walk]:
        """One walk for each seed, of `most` tokens or a few more."""
        steps = [_Steps(random.Random(seed), self.compiler.matcher(grammar)) for seed in seeds]
        while going := [each for each in steps if not each.ended and len(each.ids) < most]:
            masks = self.compiler.fill([each.matcher for each in going])
            for each, mask in zip(going, masks, strict=True):
                self._step(each, allowed_tokens(mask, len(self._tokens)))
        return [Walk(self._text(each.ids), each.ended) for each in steps]

    def accepts(self, grammar: Grammar, text: str) -> bool:
        """Whether an answer may begin with this text, with no special token in it."""
        matcher = self.compiler.matcher(grammar)
        return all(matcher.accept(token) for token in self._encode(text))

    def _step(self, steps: "_Steps", allowed: NDArray[np.bool_]) -> None:
        sums = np.cumsum(self._weights * allowed)
        assert sums[-1] > 0, ("nothing is allowed", self._text(steps.ids), steps.matcher.error)
        token = int(np.searchsorted(sums, steps.chance.random() * sums[-1], side="right"))
        if token == self._end:
            assert steps.matcher.satisfied
            steps.ended = True
            return
        assert steps.matcher.accept(token), (self._tokens[token], steps.matcher.error)
        forced = steps.matcher.forced()
        steps.ids += [token, *forced]
        for each in forced:
            assert steps.matcher.accept(each), (self._tokens[each], steps.matcher.error)
        steps.ended = steps.matcher.finished

    def _encode(self, text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            token, i = next(pair[::-1] for pair in self._plain if data.startswith(pair[1]))
            data = data[len(token) :]
            ids.append(i)
        return ids

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokens[i] for i in ids).decode(errors="replace")


@dataclass(slots=True)
class _Steps:
    chance: random.Random
    matcher: Matcher
    ids: list[int] = field(default_factory=list)
    ended: bool = False


def _weight(token: bytes) -> float:
    """Walks should end: what closes something is likely, odd bytes and white space are not."""
    if any(char in token for char in (b'"', b"}", b"]", b">", b")")):
        return _LIKELY
    if token.isspace():
        return _LESS_LIKELY
    return 1.0 if token.isascii() and token.decode().isprintable() else _UNLIKELY
