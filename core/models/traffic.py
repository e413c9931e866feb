"""What a model does and has done, for those who watch it."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from core.chat.usage import UsageCounter

_REMEMBERED = 200


class FirstToken(NamedTuple):
    """An answer began `at` (Unix time), `seconds` after its request had come."""

    at: float
    seconds: float


class Traffic:
    """Counts of all answers since the server began, whatever becomes of the model meanwhile."""

    def __init__(self) -> None:
        self._running: set[UsageCounter] = set()
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._first_tokens: deque[FirstToken] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def counting(self, counter: UsageCounter) -> Iterator[None]:
        """An answer is under way as long as the block runs."""
        self._running.add(counter)
        try:
            yield
        finally:
            self._running.remove(counter)
            prompt, completion = _tokens(counter)
            self._prompt_tokens += prompt
            self._completion_tokens += completion
            self._first_tokens += _first_token(counter)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts of answers that have begun."""
        return self._prompt_tokens + sum(_tokens(counter)[0] for counter in self._running)

    @property
    def completion_tokens(self) -> int:
        """Tokens that were generated."""
        return self._completion_tokens + sum(_tokens(counter)[1] for counter in self._running)

    @property
    def first_tokens(self) -> list[FirstToken]:
        """Those of the last answers, and of those under way."""
        begun = [first for counter in self._running for first in _first_token(counter)]
        return [*self._first_tokens, *begun]


def _tokens(counter: UsageCounter) -> tuple[int, int]:
    usage = counter.usage
    return usage.prompt_tokens if counter.first_token_at else 0, usage.completion_tokens


def _first_token(counter: UsageCounter) -> list[FirstToken]:
    if counter.first_token_at is None:
        return []
    at = time.time() - (time.monotonic() - counter.first_token_at)
    return [FirstToken(at, counter.first_token_at - counter.received)]
