"""Notices that a choice repeats itself."""

import numpy as np

from enginebay.contract.sampling_params import SamplingParams

REPETITION = "repetition"
"""The `stop_reason` of a choice that ended because it repeated itself."""

_NEVER = np.iinfo(np.int64).max


class RepetitionWatch:
    """Follows one choice, token by token, for `loop_detect_window` and `repetition_detection`.

    For each length of a pattern it counts how many tokens in a row are the same as the one so far
    before them. The cost of a token grows with the longest pattern only.
    """

    def __init__(self, params: SamplingParams) -> None:
        window, asked = params.loop_detect_window, params.repetition_detection
        longest = max(window // 2, asked.max_pattern_size if asked else 0)
        sizes = np.arange(1, longest + 1)
        self._needed = np.full(longest, _NEVER)
        if window:
            np.copyto(self._needed, window - sizes, where=sizes <= window // 2)
        if asked and asked.max_pattern_size:
            sought = (sizes >= asked.min_pattern_size) & (sizes <= asked.max_pattern_size)
            needed = np.minimum(self._needed, sizes * (asked.min_count - 1))
            np.copyto(self._needed, needed, where=sought)
        self._longest = longest
        self._same = np.zeros(longest, np.int64)
        self._end = longest
        self._token_ids = np.full(4 * longest + 16, -1, np.int64)  # none came before the first

    def add(self, token_id: int) -> bool:
        """The choice has one more token; whether it repeats itself now."""
        longest, end = self._longest, self._end
        if end == len(self._token_ids):
            self._token_ids[:longest] = self._token_ids[end - longest :]
            end = longest
        before = self._token_ids[end - longest : end][::-1]
        self._same += 1
        self._same *= before == token_id
        self._token_ids[end] = token_id
        self._end = end + 1
        return bool((self._same >= self._needed).any())


def watches_repetition(params: SamplingParams) -> bool:
    """Whether a choice with these params may end because it repeats itself."""
    asked = params.repetition_detection
    return params.loop_detect_window > 1 or bool(asked and asked.max_pattern_size)
