"""A model's abilities, found by trying it once after loading.

Class names do not reveal whether a model is causal, whether its cache continues a prompt, or
whether rows of different lengths can share a batch. Logits
do: two short texts are run from the start, then
token by token, then together; the logits must agree.
"""

import logging
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor
from transformers import Cache

from enginebay_hf.native.cache import is_empty
from enginebay_hf.native.forward import Batch, Forward

logger = logging.getLogger(__name__)

# Distances in standard deviations of the logits, seen over 67 families of tiny random models. In
# float32 right ones stay below 1e-4 and wrong ones are above 0.05. Half formats round: mostly
# below 0.08, but up to 0.5 where an expert is chosen differently, so a batch is compared with
# what the same model's rounding does to a single row.
_TOLERANCE = {torch.float32: 0.01}
_TOLERANCE_OF_HALF = 0.5
_ROUNDING_OF_HALF = 0.05

_SHORT, _LONG = 5, 9
TOKENS = _LONG + 1
"""How many tokens `probe` needs."""


class Ability(IntEnum):
    """Levels of support; each includes the ones before it."""

    NONE = 0
    ONE_ROW = 1
    BATCH = 2


@torch.inference_mode()
def probe(forward: Forward, token_ids: Sequence[int]) -> Ability:
    """Run `TOKENS` tokens of ordinary text through the model in ways that should agree."""

    def distance(logits: Tensor, length: int) -> float:
        expected = forward.prefill(token_ids[:length])[0][0]
        return ((logits - expected).abs().max() / expected.std()).item()

    batch = Batch()
    batch.join(_prefilled(forward, token_ids[:_SHORT]), _SHORT)
    if is_empty(batch.cache):  # the model keeps its memory elsewhere
        return Ability.NONE
    alone = [
        distance(forward.decode(batch, [token_ids[length]])[0], length + 1)
        for length in (_SHORT, _SHORT + 1)
    ]
    tolerance = _TOLERANCE.get(forward.rounding, _TOLERANCE_OF_HALF)
    if not all(d < tolerance for d in alone):  # not `any(d >= ...)`: a NaN is no agreement
        return Ability.NONE
    try:
        batch.join(_prefilled(forward, token_ids[:_LONG]), _LONG)
        short, long = forward.decode(batch, [token_ids[_SHORT + 2], token_ids[_LONG]])
        batch.keep([0])
        left = forward.decode(batch, [token_ids[_SHORT + 3]])[0]
    except Exception:
        logger.debug("the model cannot run a batch", exc_info=True)
        return Ability.ONE_ROW
    together = (distance(short, _SHORT + 3), distance(long, _LONG + 1), distance(left, _SHORT + 4))
    tolerance = min(tolerance, max(3 * max(alone), _ROUNDING_OF_HALF))
    return Ability.BATCH if all(d < tolerance for d in together) else Ability.ONE_ROW


def _prefilled(forward: Forward, token_ids: Sequence[int]) -> Cache:
    return forward.prefill(token_ids)[1]
