"""Speculative decoding: draft tokens that the model verifies in one step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.engine.batching.choice import ChoiceState

_MATCH = 2
_CANDIDATES = 16  # latest occurrences that are compared
_COMPARED = 16  # tokens before an occurrence
_PREDICTED = 16  # tokens of a prediction that are drafted at once


class Drafter(ABC):
    """Drafts tokens. Sampling decides; a rejected draft costs only its computation.

    `tokens`: how many it drafts for a choice at most. `is_free`: it takes no time that counts, so
    it is asked for more than what is run.
    """

    tokens: int
    is_free: bool = False

    def ready(self, wanted: Mapping[ChoiceState[Any], int]) -> Mapping[ChoiceState[Any], int]:
        """Of these choices those that can be drafted for now, after reading some of their texts."""
        return wanted

    @abstractmethod
    def draft(
        self, wanted: Mapping[ChoiceState[Any], int]
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        """Draft tokens for these choices, for each so many at most, or none."""


class PromptLookup(Drafter):
    """Prompt lookup: drafts what followed an earlier occurrence of the last two tokens.

    Saxena, 2023 (https://github.com/apoorvumang/prompt-lookup-decoding). Of the latest occurrences,
    the one with the most tokens before it in common, and of several the one where the last draft
    went on.
    """

    is_free = True

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._texts: dict[ChoiceState[Any], _Text] = {}

    def draft(
        self, wanted: Mapping[ChoiceState[Any], int]
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        self._texts = {
            choice: text for choice, text in self._texts.items() if choice.slot is not None
        }
        drafts = {}
        for choice, tokens in wanted.items():
            text = self._texts.setdefault(choice, _Text())
            if found := text.continuation(choice.token_ids, tokens):
                drafts[choice] = found
        return drafts


class Predictions(Drafter):
    """Drafts from what the client expects of the answer (`predicted_token_ids`).

    From its beginning, and from where it goes on with the last two tokens, wherever that is; behind
    a token that was expected to be another, from the next one on.
    """

    tokens = _PREDICTED
    is_free = True

    def __init__(self) -> None:
        self._texts: dict[ChoiceState[Any], _Text] = {}

    def draft(
        self, wanted: Mapping[ChoiceState[Any], int]
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        self._texts = {c: text for c, text in self._texts.items() if c.slot is not None}
        drafts: dict[ChoiceState[Any], Sequence[int]] = {}
        for choice, tokens in wanted.items():
            predicted = choice.request.predicted_token_ids
            said = choice.token_ids[len(choice.request.prompt_token_ids) :]
            if len(said) < _MATCH:
                begins = predicted[: len(said)] == tuple(said)
                found: Sequence[int] = predicted[len(said) :][:tokens] if begins else ()
            else:
                text = self._texts.setdefault(choice, _Text())
                text_so_far = [*predicted, *said]
                found = text.continuation(text_so_far, tokens)
                found = found or text.same_distance(text_so_far, tokens)
            if found:
                drafts[choice] = found
        return drafts


class _Text:
    """Where each pair of tokens occurs in a text that grows."""

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._earlier: list[int] = []  # of the pair at each place, its occurrence before; -1: none
        self._distance = 0  # of the last ones from the place that was taken

    def continuation(self, token_ids: Sequence[int], tokens: int) -> Sequence[int]:
        """The tokens after the earlier occurrence of the last ones."""
        last = len(token_ids) - _MATCH
        if last < 1:
            return ()
        del self._earlier[last:]  # some may have been taken back
        for at in range(len(self._earlier), last):
            pair = token_ids[at] << 32 | token_ids[at + 1]
            self._earlier.append(self._latest.get(pair, -1))
            self._latest[pair] = at
        found: list[tuple[int, int, int]] = []  # the most in common, then as far away as before
        at = self._latest.get(token_ids[last] << 32 | token_ids[last + 1], -1)
        for _ in range(_CANDIDATES):
            if not 0 <= at < last:
                break
            same = _common_suffix(token_ids, at + _MATCH, last + _MATCH)
            found.append((same, -abs(last - at - self._distance), at))
            if same == _COMPARED and found[-1][1] == 0:
                break
            at = self._earlier[at]
        same, _, place = max(found, default=(0, 0, 0))
        if same < _MATCH:
            return ()
        self._distance = last - place
        after = token_ids[place + _MATCH : place + _MATCH + tokens]
        return [after[i % len(after)] for i in range(tokens)]  # it goes round if it ends here

    def same_distance(self, token_ids: Sequence[int], tokens: int) -> Sequence[int]:
        """The tokens as far away as those that were taken last, if any were."""
        start = len(token_ids) - self._distance
        return token_ids[start : start + tokens] if self._distance else ()


def _common_suffix(token_ids: Sequence[int], end: int, other: int) -> int:
    """How many tokens before `end` are those before `other`, as far as is compared."""
    most = min(end, _COMPARED)
    if token_ids[end - most : end] == token_ids[other - most : other]:
        return most
    return next(
        (i for i in range(most) if token_ids[end - 1 - i] != token_ids[other - 1 - i]), most
    )
