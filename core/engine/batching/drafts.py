"""Speculative decoding: draft tokens that the model verifies in one step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from core.engine.batching.choice import ChoiceState

_MATCH = 2


class Drafter(ABC):
    """Drafts tokens. Sampling decides; a rejected draft costs only its computation."""

    @abstractmethod
    def draft(
        self, choices: Sequence[ChoiceState[Any]], room: int
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        """Draft tokens for each choice, at most `room` in total."""


class PromptLookup(Drafter):
    """Prompt lookup: drafts what followed an earlier occurrence of the last two tokens.

    Saxena, 2023 (https://github.com/apoorvumang/prompt-lookup-decoding). Worthwhile where answers
    quote the prompt and few choices run; large batches are compute-bound.
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
    """The tokens after the latest earlier occurrence of the last `_MATCH` tokens."""
    pattern = token_ids[-_MATCH:]
    for at in range(len(token_ids) - _MATCH - 1, -1, -1):
        if token_ids[at] == pattern[0] and token_ids[at : at + _MATCH] == pattern:
            return token_ids[at + _MATCH : at + _MATCH + tokens]
    return []
