"""Guessed tokens, verified by the model in one step: several tokens for the price of one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from core.engine.batching.choice import ChoiceState

_MATCH = 2


class Drafter(ABC):
    """Guesses how choices go on. Sampling decides; a wrong guess costs only its computation."""

    @abstractmethod
    def draft(
        self, choices: Sequence[ChoiceState[Any]], room: int
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        """Tokens that may follow each choice, at most `room` together."""


class PromptLookup(Drafter):
    """Repeats what followed the last two tokens where they occurred before.

    Saxena, 2023 (https://github.com/apoorvumang/prompt-lookup-decoding). Pays where answers quote
    their prompt, and for few choices: with many, the model's time goes into computing.
    """

    def __init__(self, tokens: int, max_choices: int = 4) -> None:
        self._tokens = tokens
        self._max_choices = max_choices

    def draft(
        self, choices: Sequence[ChoiceState[Any]], room: int
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        drafts: dict[ChoiceState[Any], Sequence[int]] = {}
        if len(choices) > self._max_choices:
            return drafts
        for choice in choices:
            tokens = min(self._tokens, choice.completion.tokens_left - 1, room)
            if tokens > 0 and (found := _continuation(choice.token_ids, tokens)):
                drafts[choice] = found
                room -= len(found)
        return drafts


def _continuation(token_ids: list[int], tokens: int) -> list[int]:
    """What followed the latest earlier occurrence of the last `_MATCH` tokens."""
    pattern = token_ids[-_MATCH:]
    for at in range(len(token_ids) - _MATCH - 1, -1, -1):
        if token_ids[at] == pattern[0] and token_ids[at : at + _MATCH] == pattern:
            return token_ids[at + _MATCH : at + _MATCH + tokens]
    return []
