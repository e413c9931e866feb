"""How many prompt tokens a pass may have while others decode, by how long passes take."""

# Without a limit: a stream that gets 20 tokens a second is not felt to stop, and one that is slower
# anyway may wait for some of its usual steps.
_SECONDS = 0.05
_USUAL_STEPS = 4.0

_FEWEST = 64
"""Prompt tokens of a pass then: kernels that compute many rows at once want at least so many."""

_MARGIN = 0.8
"""Of what a limit leaves for prompts: passes of about as many tokens do not all take as long."""

_WEIGHT = 0.25  # of the newest pass, unless it was dearer: what is too long must not come again
_LONGEST = 3.0  # times what was known: a pause of the machine is no time of a pass


class PrefillPace:
    """Learns what a pass without prompts takes, and what each prompt token adds to it.

    `most`: prompt tokens, however fast passes are. `slowdown`: how many times the usual time a pass
    may take, whatever the number of prompts; None: as long as is hardly felt, for each of them.
    """

    def __init__(self, most: int, slowdown: float | None = None) -> None:
        self._most = most
        self._slowdown = slowdown
        self._step = 0.0
        self._token: float | None = None

    def chunk_tokens(self, prompts: int = 1) -> int:
        """Prompt tokens of the next pass beside decoding choices, for so many prompts together."""
        most = prompts * self._most
        if self._slowdown is None:
            # The more are waiting for their first token, the longer the others wait for their next.
            seconds = max(_SECONDS, _USUAL_STEPS * self._step)
            each = max(_FEWEST, self._fitting(seconds - self._step, self._most))
            return min(most, prompts * each)
        return max(1, self._fitting(_MARGIN * (self._slowdown - 1) * self._step, most))

    def took(self, seconds: float, prompt_tokens: int, *, decodes: bool) -> None:
        """Record how long a pass took, with so many tokens of prompts; whether others decoded."""
        if not prompt_tokens:
            self._step = _nearer(self._step, seconds) if self._step else seconds
        elif 2 * prompt_tokens >= self.chunk_tokens():  # a prompt's end is dearer by token
            added = max(0.0, seconds - (self._step if decodes else 0.0))
            known, seen = self._known, added / prompt_tokens
            dearer = min(seen, _LONGEST * known or seen)
            self._token = dearer if seen > known else _nearer(known, seen)

    @property
    def _known(self) -> float:
        """What a token takes: a whole step at first, so that nobody waits because of a guess."""
        return self._step if self._token is None else self._token

    def _fitting(self, seconds: float, most: int) -> int:
        """Prompt tokens that add no more than this, as far as is known."""
        if not self._step:
            return 0
        return int(min(most, seconds / self._known)) if self._known else most


def _nearer(known: float, seen: float) -> float:
    return known + _WEIGHT * (seen - known)
