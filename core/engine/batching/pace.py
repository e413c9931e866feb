"""How many prompt tokens a pass may have while others decode, by how long passes take."""

import time
from collections.abc import Callable

# A stream that gets 20 tokens a second is not felt to stop; one that is slower anyway may wait
# for some of its usual steps. Smaller passes would make the newcomer's prompt take much longer.
_SECONDS = 0.05
_USUAL_STEPS = 4

_FEWEST = 64
"""Prompt tokens of a pass: kernels that compute many rows at once want at least so many."""

_WEIGHT = 0.25  # of the newest pass


class Pace:
    """Learns what a pass without prompts takes, and what each prompt token adds to it."""

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """`most`: prompt tokens, however fast passes are. `clock`: in seconds."""
        self._most = most
        self._clock = clock
        self._step: float | None = None
        self._token: float | None = None
        self._began: float | None = None
        self._prompt_tokens = 0
        self._decodes = False

    @property
    def tokens(self) -> int:
        """Prompt tokens of the next pass beside decoding choices, for each prompt."""
        if not self._token:
            return self._most
        step = self._step or 0.0
        added = max(_SECONDS, _USUAL_STEPS * step) - step
        return min(self._most, max(_FEWEST, int(added / self._token)))

    def starts(self, prompt_tokens: int, *, decodes: bool) -> None:
        """A pass starts, with so many tokens of prompts; whether others decode in it."""
        self._prompt_tokens, self._decodes = prompt_tokens, decodes
        self._began = self._clock()

    def ends(self) -> None:
        """The pass that was started last has ended; to be left out for one that says nothing."""
        if self._began is None:
            return
        seconds, self._began = self._clock() - self._began, None
        if not self._prompt_tokens:
            self._step = _nearer(self._step, seconds)
        elif self._prompt_tokens >= _FEWEST:
            added = seconds - ((self._step or 0.0) if self._decodes else 0.0)
            self._token = _nearer(self._token, max(added, 0.0) / self._prompt_tokens)


def _nearer(known: float | None, seen: float) -> float:
    return seen if known is None else known + _WEIGHT * (seen - known)
