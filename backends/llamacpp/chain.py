"""Chains of llama.cpp's own samplers.

Order: DRY, temperature, top-n-sigma, top_k, typical, top_p, min_p, XTC, and what selects. That is
llama.cpp's order but for temperature, which comes last there and, as with OpenAI's API, vLLM and
TabbyAPI, first here; `temperature_last` is llama.cpp's order. Mirostat follows temperature alone.
"""

from collections.abc import Iterator, Sequence
from random import Random

from backends.llamacpp import sampler_calls as calls
from backends.llamacpp.library import llama
from backends.llamacpp.vocabulary import Vocabulary
from backends.sampling.draw import LOWEST_TEMPERATURE
from backends.sampling.row import Row
from enginebay import SamplingParams

_KEEP = 1
_MIROSTAT_TOKENS = 100  # as in the paper's code, https://github.com/basusourya/mirostat
_NO_LESS_LIKELY = 1e-30
"""For samplers that take the logarithm of a probability, which must not have become 0."""


class Chain:
    """The native samplers of one choice; `close()` frees them."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        random: Random,
    ) -> None:
        self._vocabulary = vocabulary
        self._wants_order = _wants_order(params)
        samplers = list(_samplers(vocabulary, params, prompt_token_ids, random))
        settings = llama.llama_sampler_chain_default_params()
        settings.no_perf = True
        self._chain: int = calls.chain(settings)
        for sampler in samplers:
            calls.chain_add(self._chain, sampler)

    @property
    def length(self) -> int:
        """How many samplers there are."""
        return int(calls.chain_length(self._chain))

    def choose(self, logits: Row) -> int:
        """A token. The highest logit must be 0."""
        candidates = self._vocabulary.candidates
        return candidates.choose(self._chain, logits, best_first=self._wants_order)

    def accept(self, token_id: int) -> None:
        """Note a token of the completion."""
        calls.accept(self._chain, token_id)

    def close(self) -> None:
        """Free the samplers, once."""
        chain, self._chain = self._chain, 0
        if chain:
            calls.free(chain)


def needs_chain(params: SamplingParams) -> bool:
    """Whether the params ask for a sampler that only llama.cpp has."""
    if params.dry_multiplier:
        return True
    if params.temperature <= 0:
        return False
    return bool(
        params.typical_p < 1
        or params.top_n_sigma > 0
        or params.xtc_probability
        or params.mirostat
        or params.dynatemp_range
        or params.adaptive_target >= 0
        or (params.temperature_last and params.temperature != 1)
    )


def _wants_order(params: SamplingParams) -> bool:
    """Whether a sampler will sort all tokens, not just those that others have left."""
    if params.dry_multiplier or params.temperature <= 0:
        return False
    if params.mirostat or (params.dynatemp_range and not params.temperature_last):
        return True
    xtc_of_all = params.xtc_probability and not params.min_p
    return bool(not params.top_k and (params.typical_p < 1 or params.top_p < 1 or xtc_of_all))


def _samplers(
    vocabulary: Vocabulary,
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    random: Random,
) -> Iterator[int]:
    """Addresses of new samplers, for a chain to own."""
    if params.dry_multiplier:
        yield _dry(vocabulary, params, prompt_token_ids)
    if params.temperature <= 0:
        yield calls.greedy()
        return
    if params.mirostat:
        yield from _temperature(params)
        yield calls.min_p(_NO_LESS_LIKELY, _KEEP)
        yield _mirostat(vocabulary, params, random)
        return
    if not params.temperature_last:
        yield from _temperature(params)
    yield from _truncation(vocabulary, params, random)
    if params.temperature_last:
        yield from _temperature(params)
    if params.adaptive_target >= 0:
        yield calls.adaptive_p(params.adaptive_target, params.adaptive_decay, _seed(random))
    else:
        yield calls.dist(_seed(random))


def _truncation(vocabulary: Vocabulary, params: SamplingParams, random: Random) -> Iterator[int]:
    if params.top_n_sigma > 0:
        yield calls.top_n_sigma(params.top_n_sigma)
    if 0 < params.top_k < vocabulary.size:
        yield calls.top_k(params.top_k)
    if params.typical_p < 1:
        yield calls.min_p(_NO_LESS_LIKELY, _KEEP)
        yield calls.typical(params.typical_p, _KEEP)
    if params.top_p < 1:
        yield calls.top_p(params.top_p, _KEEP)
    if params.min_p > 0:
        yield calls.min_p(params.min_p, _KEEP)
    if params.xtc_probability:
        yield calls.xtc(params.xtc_probability, params.xtc_threshold, _KEEP, _seed(random))


def _temperature(params: SamplingParams) -> Iterator[int]:
    temperature = max(params.temperature, LOWEST_TEMPERATURE)
    if params.dynatemp_range and not params.mirostat:
        yield calls.dynamic_temperature(
            temperature, params.dynatemp_range, params.dynatemp_exponent
        )
    elif temperature != 1:
        yield calls.temperature(temperature)


def _mirostat(vocabulary: Vocabulary, params: SamplingParams, random: Random) -> int:
    tau, eta, seed = params.mirostat_tau, params.mirostat_eta, _seed(random)
    sampler: int = (
        calls.mirostat(vocabulary.size, seed, tau, eta, _MIROSTAT_TOKENS)
        if params.mirostat == 1
        else calls.mirostat_v2(seed, tau, eta)
    )
    return sampler


def _dry(vocabulary: Vocabulary, params: SamplingParams, prompt_token_ids: Sequence[int]) -> int:
    last_n = params.dry_penalty_last_n
    sampler = vocabulary.dry(
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        last_n,
        *params.dry_sequence_breakers,
    )
    start = max(0, len(prompt_token_ids) - last_n) if last_n >= 0 else 0
    for token_id in prompt_token_ids[start:]:
        calls.accept(sampler, token_id)
    return sampler


def _seed(random: Random) -> int:
    """Not the highest number of 32 bits, which asks llama.cpp for chance."""
    return random.getrandbits(31)
