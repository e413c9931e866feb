"""Samples the tokens of one choice from logits, with all sampling params, in numpy."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.sampler import truncation
from enginebay.engine.sampler.adaptive import Adaptive
from enginebay.engine.sampler.draw import draw, place, place_by_weight, reachable, seeded_random
from enginebay.engine.sampler.dry import Dry
from enginebay.engine.sampler.logits import Mask, Row, masked
from enginebay.engine.sampler.logprobs import TokenText
from enginebay.engine.sampler.mirostat import Mirostat
from enginebay.engine.sampler.penalties import LogitChanges
from enginebay.engine.sampler.temperature import Logits, normalized, smoothed, tempered
from enginebay.engine.sampler.truncation import Kept

Truncation = Callable[[Logits], Kept]


class RowSampler:
    """The sampling state of one choice: its params, the tokens it has seen, its random numbers.

    It works on the CPU, one row at a time; the cost grows with the vocabulary and the params used.
    The random numbers depend only on the seed and the choice's index, so the same logits give the
    same tokens in any batch. Not thread-safe.

    `honours` are the sampling params handled here; `Completion.keeps` has most of the others.
    """

    honours: ClassVar[frozenset[str]] = frozenset(
        {
            "min_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logit_bias",
            "seed",
            "allowed_token_ids",
            "temperature_last",
            "typical_p",
            "top_n_sigma",
            "xtc_probability",
            "xtc_threshold",
            "dry_multiplier",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "mirostat",
            "mirostat_tau",
            "mirostat_eta",
            "dynatemp_range",
            "dynatemp_exponent",
            "adaptive_target",
            "adaptive_decay",
            "penalty_last_n",
            "smoothing_factor",
            "top_a",
            "tfs",
            "skew",
        }
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        index: int,
        *,
        end_token_ids: Collection[int],
        vocab_size: int,
        token_text: TokenText,
    ) -> None:
        """`end_token_ids` are those that `min_tokens` forbids, `vocab_size` the length of a row.

        `token_text`: the text of a token, for sequence breakers.
        """
        self.params = params
        self._prompt = prompt_token_ids
        self._end_token_ids = end_token_ids
        self.vocab_size = vocab_size
        self._token_text = token_text
        self._random = seeded_random(params, index)
        self._plain = is_plain(params)
        self._adaptive = Adaptive(params) if params.adaptive_target >= 0 else None
        self._mirostat = Mirostat(params) if params.mirostat else None
        self._truncations = [] if params.mirostat else list(self._chosen_truncations())
        self.restart(())

    @property
    def is_plain_greedy(self) -> bool:
        """Whether sampling is greedy: the highest logit that the mask allows."""
        return self.params.temperature <= 0 and not (self._changes.any or self._dry)

    def sample(self, row: Row, mask: Mask | None = None, banned: Sequence[int] = ()) -> int:
        """Sample from the model's logits `[vocabulary]` without recording the token.

        With a mask, a token that it allows, even if all of these are banned; else none of `banned`.
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
        """Record a token of the completion."""
        self._changes.accept(token_id)
        if self._dry:
            self._dry.accept(token_id)

    def restart(self, token_ids: Sequence[int]) -> None:
        """Replace the recorded completion tokens."""
        params = self.params
        self._changes = LogitChanges(params, self._prompt, self._end_token_ids, self.vocab_size)
        self._dry = Dry(params, self._prompt, self._token_text) if params.dry_multiplier else None
        for token_id in token_ids:
            self.accept(token_id)

    def _choose(self, logits: Row) -> int:
        likeliest = int(logits.argmax())  # of a row with NaN in it, that
        highest = logits[likeliest]
        if np.isnan(highest):
            raise FloatingPointError("the logits are not numbers")
        if np.isinf(highest) or self.params.temperature <= 0:
            return likeliest
        if self._plain:
            return draw(logits - highest, self.params, self._random.random())
        token_ids, among = self._candidates(logits - highest)
        chosen = self._choose_among(among)
        return chosen if token_ids is None else int(token_ids[chosen])

    def _choose_among(self, logits: Logits) -> int:
        """Draw an index into the logits of the candidates."""
        params = self.params
        if params.smoothing_factor:
            logits = smoothed(logits, params.smoothing_factor)
        if self._mirostat:
            logprobs = normalized(tempered(logits, params))
            return self._mirostat.choose(logprobs, self._random.random())
        if not params.temperature_last:
            logits = tempered(logits, params)
        left: NDArray[np.intp] | None = None
        for keep in self._truncations:
            kept = keep(logits)
            if not kept.all():
                places = np.flatnonzero(kept)
                left = places if left is None else left[places]
                logits = logits[places]
        if params.temperature_last:
            logits = tempered(logits, params)
        chosen = self._drawn(logits)
        return chosen if left is None else int(left[chosen])

    def _drawn(self, logits: Logits) -> int:
        """Draw an index among the remaining candidates."""
        uniform = self._random.random()
        if not self._adaptive:
            return self._place(logits, uniform)
        logprobs = normalized(logits)
        chosen = self._place(self._adaptive.logits(logprobs), uniform)
        self._adaptive.note(float(logprobs[chosen]))
        return chosen

    def _place(self, logits: Logits, uniform: float) -> int:
        highest = logits.max()
        weights = np.exp(logits - highest if highest else logits)
        if self.params.skew:
            return place_by_weight(weights, uniform ** float(np.exp(-self.params.skew)))
        return place(weights, uniform)

    @property
    def _cuts_first(self) -> bool:
        """Whether no sampler that needs all probabilities runs before top_k, top_p and min_p."""
        params = self.params
        return not (
            params.mirostat
            or params.smoothing_factor
            or params.top_n_sigma > 0
            or params.typical_p < 1
            or params.top_a > 0
            or (params.dynatemp_range and not params.temperature_last)
        )

    def _candidates(self, row: Row) -> tuple[NDArray[np.intp] | None, Logits]:
        """The candidate tokens in order of their ids, None for all, and their logits.

        Already reduced by top_k, top_p and min_p, if those come first. `row` has maximum 0.
        """
        params = self.params
        if self._cuts_first and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0):
            temperature = 1.0 if params.temperature_last else params.temperature
            token_ids, _ = reachable(row, temperature, params)
            if token_ids is not None:
                return token_ids, row[token_ids].astype(np.float64)
        if row.min() > -np.inf:
            return None, row
        token_ids = np.flatnonzero(row > -np.inf)
        return token_ids, row[token_ids]

    def _chosen_truncations(self) -> Iterator[Truncation]:
        params = self.params
        if not self._cuts_first:
            yield from self._first_cuts()
        if params.tfs < 1:
            yield _of_logprobs(truncation.tail_free, params.tfs)
        if params.xtc_probability:
            yield self._exclude_top

    def _first_cuts(self) -> Iterator[Truncation]:
        params = self.params
        if params.top_n_sigma > 0:
            yield _of_logprobs(truncation.top_n_sigma, params.top_n_sigma)
        if params.top_k > 0:
            yield partial(truncation.top_k, count=params.top_k)
        if params.typical_p < 1:
            yield _of_logprobs(truncation.typical, params.typical_p)
        if params.top_p < 1:
            yield _of_logprobs(truncation.top_p, params.top_p)
        if params.top_a > 0:
            yield _of_logprobs(truncation.top_a, params.top_a)
        if params.min_p > 0:
            yield partial(truncation.min_p, ratio=params.min_p)

    def _exclude_top(self, logits: Logits) -> Kept:
        if self._random.random() >= self.params.xtc_probability:
            return np.ones(len(logits), np.bool_)
        return truncation.exclude_top(normalized(logits), self.params.xtc_threshold)


def _of_logprobs(keep: Callable[[Logits, float], Kept], value: float) -> Truncation:
    return lambda logits: keep(normalized(logits), value)


def is_plain(params: SamplingParams) -> bool:
    """Whether drawing depends only on temperature, top_k, top_p and min_p.

    Penalties, bias and bans, which change the logits before, do not count.
    """
    return not (
        params.mirostat
        or params.typical_p < 1
        or params.top_n_sigma > 0
        or params.top_a > 0
        or params.tfs < 1
        or params.xtc_probability
        or params.smoothing_factor
        or params.dynatemp_range
        or params.adaptive_target >= 0
        or params.skew
        or (params.temperature_last and params.temperature != 1)
    )
