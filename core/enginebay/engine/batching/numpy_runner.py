"""Base of runners with numpy logits: sampling, without the model."""

from collections.abc import Collection, Sequence
from math import isnan
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import GenerationRequest, TokenLogprob
from enginebay.engine.batching.runner import Runner, Sampled
from enginebay.engine.completion import Completion
from enginebay.engine.sampler.logits import Mask, Row
from enginebay.engine.sampler.logprobs import RowLogprobs, TokenText
from enginebay.engine.sampler.row_sampler import RowSampler

Rows: TypeAlias = NDArray[np.float32] | Sequence[Row]
"""Logits of several positions: `[rows, vocabulary]`, or a list of rows. Treated as read-only."""


class NumpyRunner(Runner[Rows, RowSampler]):
    """A runner with float32 numpy logits; subclasses implement the model.

    They implement `memory`, `run`, `copy`, `cut` and `clear`. `RowSampler` samples row by row on
    the engine thread. `unsupported` are the sampling params that a `BatchingEngine` over such a
    runner cannot honour, for its `ModelInfo`.
    """

    unsupported: ClassVar[frozenset[str]] = (
        frozenset(SamplingParams.__dataclass_fields__)
        - Completion.keeps
        - RowSampler.honours
        - {"logprobs", "prompt_logprobs"}
    )

    def __init__(
        self, vocab_size: int, eos_token_ids: Collection[int], token_text: TokenText
    ) -> None:
        """`vocab_size` is the length of a row; `token_text` gives a token's text or its bytes."""
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._token_text = token_text

    def sampler(self, request: GenerationRequest, index: int) -> RowSampler:
        params = request.sampling
        ends = frozenset() if params.ignore_eos else self._eos_token_ids
        return RowSampler(
            params,
            request.prompt_token_ids,
            index,
            end_token_ids=ends.union(params.stop_token_ids),
            vocab_size=self._vocab_size,
            token_text=self._token_text,
        )

    def sample(
        self,
        logits: Rows,
        rows: Sequence[int],
        samplers: Sequence[RowSampler],
        masks: Sequence[Mask | None],
    ) -> list[Sampled]:
        tokens = _greedy(logits, rows, samplers, masks)
        sampled = []
        for i, (row, sampler, mask) in enumerate(zip(rows, samplers, masks, strict=True)):
            token_id = tokens.get(i)
            if token_id is None:
                token_id = sampler.sample(logits[row], mask)
            sampled.append(self.force(logits, row, sampler, token_id))
        return sampled

    def force(self, logits: Rows, row: int, sampler: RowSampler, token_id: int) -> Sampled:
        sampler.accept(token_id)
        top = sampler.params.logprobs
        if top is None:
            return Sampled(token_id)
        return Sampled(token_id, RowLogprobs(logits[row], top).of(token_id, self._token_text))

    def accept(self, sampler: RowSampler, token_id: int) -> None:
        sampler.accept(token_id)

    def restart(
        self, sampler: RowSampler, request: GenerationRequest, index: int, token_ids: Sequence[int]
    ) -> RowSampler:
        sampler.restart(token_ids)
        return sampler

    def logprobs(
        self, logits: Rows, rows: Sequence[int], token_ids: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        return [
            RowLogprobs(logits[row], top).of(token_id, self._token_text, ranked=True)
            for row, token_id in zip(rows, token_ids, strict=True)
        ]


def _greedy(
    logits: Rows,
    rows: Sequence[int],
    samplers: Sequence[RowSampler],
    masks: Sequence[Mask | None],
) -> dict[int, int]:
    """Argmax tokens of the purely greedy samplers, by index in `samplers`."""
    greedy = [
        i
        for i, (sampler, mask) in enumerate(zip(samplers, masks, strict=True))
        if mask is None and sampler.is_plain_greedy
    ]
    wanted = [rows[i] for i in greedy]
    if isinstance(logits, np.ndarray) and len(set(wanted)) == len(logits):
        of_row = logits.argmax(axis=1).tolist()
        best = [of_row[row] for row in wanted]
    else:
        best = [int(logits[row].argmax()) for row in wanted]
    # The highest of a row with NaN in it is NaN.
    if any(isnan(logits[row].item(token)) for row, token in zip(wanted, best, strict=True)):
        raise FloatingPointError("the logits are not numbers")
    return dict(zip(greedy, best, strict=True))
