"""What a model can do, found by trying it once after loading.

Class names do not tell whether a model is causal, whether its cache continues a prompt, or whether
rows of different lengths can share a batch. Logits do: two short texts are run from the start, then
token by token, then together; the logits must agree.
"""

import logging
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from backends.hf.runner import Batch, ModelRunner

logger = logging.getLogger(__name__)

# In standard deviations of the logits. Of 67 model families the right ones stay below 4e-5 in
# float32 and the wrong ones are above 1.5; half formats get room for their rounding.
_TOLERANCE = {torch.float32: 0.01}
_TOLERANCE_OF_HALF = 0.5

_SHORT, _LONG = 5, 9
TOKENS = _LONG + 1
"""How many tokens `probe` needs."""


class Ability(IntEnum):
    """How far a model can be served; each includes the ones before it."""

    NONE = 0
    ONE_ROW = 1
    BATCH = 2


@torch.inference_mode()
def probe(runner: ModelRunner, token_ids: Sequence[int]) -> Ability:
    """Run `TOKENS` tokens of ordinary text through the model in ways that should agree."""
    tolerance = _TOLERANCE.get(runner.dtype, _TOLERANCE_OF_HALF)

    def agrees(logits: Tensor, length: int) -> bool:
        expected = runner.prefill(token_ids[:length])[0][0]
        distance = ((logits - expected).abs().max() / expected.std()).item()
        return distance < tolerance  # False for a NaN, too

    alone = Batch()
    alone.join(runner.prefill(token_ids[:_SHORT])[1], _SHORT, rows=1)
    if not agrees(runner.decode(alone, [token_ids[_SHORT]])[0], _SHORT + 1):
        return Ability.NONE
    try:
        together = alone
        together.join(runner.prefill(token_ids[:_LONG])[1], _LONG, rows=1)
        short, long = runner.decode(together, [token_ids[_SHORT + 1], token_ids[_LONG]])
        together.keep([0])
        left = runner.decode(together, [token_ids[_SHORT + 2]])[0]
    except Exception:
        logger.debug("the model cannot run a batch", exc_info=True)
        return Ability.ONE_ROW
    batches = agrees(short, _SHORT + 2) and agrees(long, _LONG + 1) and agrees(left, _SHORT + 3)
    return Ability.BATCH if batches else Ability.ONE_ROW
