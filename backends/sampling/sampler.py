"""How one choice gets its tokens from logits, by all of the sampling params in numpy."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from backends.batching.runner import Mask
from backends.sampling import truncation
from backends.sampling.draw import LOWEST_TEMPERATURE, draw, lowest_weight
from backends.sampling.dry import Dry
from backends.sampling.masks import masked
from backends.sampling.mirostat import Mirostat
from backends.sampling.penalties import LogitChanges
from backends.sampling.row import Row
from backends.sampling.temperature import normalized, smoothed, tempered
from backends.sampling.truncation import Kept, Logprobs
from enginebay import SamplingParams

Truncation = Callable[[Logprobs], Kept]


class RowSampler:
    """The sampling state of one choice: its params, the tokens it has seen, its random numbers.

    The numbers follow from the seed and the choice's index alone. `adaptive_*` and what is no
    matter of logits (stops, logprobs, constraints, healing, banned strings) are not done here.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        index: int,
        *,
        end_token_ids: Collection[int],
        vocab_size: int,
        token_text: Callable[[int], str],
    ) -> None:
        """`end_token_ids` are those that `min_tokens` forbids."""
        self._params = params
        self._prompt = prompt_token_ids
        self._end_token_ids = end_token_ids
        self._vocab_size = vocab_size
        self._token_text = token_text
        self._random = Random(None if params.seed is None else f"{params.seed}/{index}")
        self._mirostat = Mirostat(params) if params.mirostat else None
        self._truncations = [] if params.mirostat else list(self._chosen_truncations())
        self.restart(())

    def sample(self, row: Row, mask: Mask | None = None, banned: Sequence[int] = ()) -> int:
        """A token by the model's logits `[vocabulary]`, of which no note is taken.

        With a mask, one that it allows, even if all of these are forbidden; else none of `banned`.
        `FloatingPointError` for a row that has no such token.
        """
        with np.errstate(over="ignore"):  # what is as unlikely as that becomes impossible
            logits = self._changes.apply(row)
            if self._dry:
                logits = self._dry.apply(logits)
            if banned:
                logits = logits.copy()
                logits[list(banned)] = -np.inf
            if mask is not None:
                logits = masked(logits, row, mask)
            token_id = self._choose(logits)
        if banned and not logits[token_id] > -np.inf:
            raise FloatingPointError("every token is forbidden")
        return token_id

    def accept(self, token_id: int) -> None:
        """Take note of a token of the completion."""
        self._changes.accept(token_id)
        if self._dry:
            self._dry.accept(token_id)

    def restart(self, token_ids: Sequence[int]) -> None:
        """Take note of these tokens of the completion instead of those before."""
        params = self._params
        self._changes = LogitChanges(params, self._prompt, self._end_token_ids, self._vocab_size)
        self._dry = Dry(params, self._prompt, self._token_text) if params.dry_multiplier else None
        for token_id in token_ids:
            self.accept(token_id)

    def _choose(self, logits: Row) -> int:
        likeliest = int(logits.argmax())  # of a row with NaN in it, that
        highest = logits[likeliest]
        if np.isnan(highest):
            raise FloatingPointError("the logits are not numbers")
        if np.isinf(highest) or self._params.temperature <= 0:
            return likeliest
        if self._is_plain:
            return draw(logits - highest, self._params, self._random.random())
        return self._choose_from_sorted(logits - highest)

    @property
    def _is_plain(self) -> bool:
        """Whether there is nothing but temperature, top_k, top_p and min_p."""
        params = self._params
        return not (
            params.mirostat
            or params.typical_p < 1
            or params.top_n_sigma > 0
            or params.top_a > 0
            or params.tfs < 1
            or params.xtc_probability
            or params.smoothing_factor
            or params.dynatemp_range
            or params.skew
            or (params.temperature_last and params.temperature != 1)
        )

    def _choose_from_sorted(self, row: Row) -> int:
        params = self._params
        token_ids = self._candidates(row)
        token_ids = token_ids[np.argsort(-row[token_ids])]
        logits = row[token_ids].astype(np.float64)
        if params.smoothing_factor:
            logits = smoothed(logits, params.smoothing_factor)
        if self._mirostat:
            logprobs = normalized(tempered(logits, params))
            return int(token_ids[self._mirostat.choose(logprobs, self._random.random())])
        if not params.temperature_last:
            logits = tempered(logits, params)
        for keep in self._truncations:
            kept = keep(normalized(logits))
            token_ids, logits = token_ids[kept], logits[kept]
        if params.temperature_last:
            logits = tempered(logits, params)
        uniform = self._random.random()
        if params.skew:
            uniform = uniform ** np.exp(-params.skew)
        else:  # as where nothing is sorted
            order = np.argsort(token_ids)
            token_ids, logits = token_ids[order], logits[order]
        sums = np.cumsum(np.exp(logits - logits.max()))
        place = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
        return int(token_ids[min(place, len(token_ids) - 1)])

    @property
    def _cuts_unsorted(self) -> bool:
        """Whether nothing that goes by all probabilities comes before top_k, top_p and min_p."""
        params = self._params
        return not (
            params.mirostat
            or params.smoothing_factor
            or params.top_n_sigma > 0
            or params.typical_p < 1
            or params.top_a > 0
            or (params.dynatemp_range and not params.temperature_last)
        )

    def _candidates(self, row: Row) -> NDArray[np.intp]:
        """Tokens worth sorting: most of a vocabulary need not be."""
        params = self._params
        if not self._cuts_unsorted:
            return np.flatnonzero(row > -np.inf)
        temperature = 1.0 if params.temperature_last else params.temperature
        weights = np.exp(row / np.float32(max(temperature, LOWEST_TEMPERATURE)))
        lowest = lowest_weight(weights, params)
        return np.flatnonzero(weights >= lowest if lowest else weights)

    def _chosen_truncations(self) -> Iterator[Truncation]:
        params = self._params
        if not self._cuts_unsorted:
            yield from self._sorted_cuts()
        if params.tfs < 1:
            yield partial(truncation.tail_free, mass=params.tfs)
        if params.xtc_probability:
            yield self._exclude_top

    def _sorted_cuts(self) -> Iterator[Truncation]:
        params = self._params
        if params.top_n_sigma > 0:
            yield partial(truncation.top_n_sigma, sigmas=params.top_n_sigma)
        if params.top_k > 0:
            yield partial(truncation.top_k, count=params.top_k)
        if params.typical_p < 1:
            yield partial(truncation.typical, mass=params.typical_p)
        if params.top_p < 1:
            yield partial(truncation.top_p, mass=params.top_p)
        if params.top_a > 0:
            yield partial(truncation.top_a, factor=params.top_a)
        if params.min_p > 0:
            yield partial(truncation.min_p, ratio=params.min_p)

    def _exclude_top(self, logprobs: Logprobs) -> Kept:
        if self._random.random() >= self._params.xtc_probability:
            return np.ones(len(logprobs), np.bool_)
        return truncation.exclude_top(logprobs, self._params.xtc_threshold)
