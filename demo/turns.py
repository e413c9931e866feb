"""The plain records that the generator produces."""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """One question and what the model should answer to it."""

    user: str
    answer: str
    thought: str
    thinks: bool = False
    """True when the model should reason without being asked to."""


@dataclass(slots=True)
class Dialogue:
    """Messages for the chat template, and the assistant text that has to follow them."""

    skill: str
    messages: list[Json]
    completion: str
    tools: list[Json] = field(default_factory=list)
    enable_thinking: bool | None = None
    unlearned: frozenset[int] = frozenset()
    """Which assistant messages of the history not to learn, counted from 0: they lost their
    reasoning, as history does, and would teach to answer without it."""
