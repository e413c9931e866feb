"""Masks of constraints over logits, unpacked on the device that the logits are on."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from enginebay import Mask


def keep_to_masks(logits: Tensor, masks: Sequence[Mask | None]) -> Tensor:
    """Logits with each row masked to its allowed tokens; `logits` itself without masks.

    What is allowed can be taken: where only tokens are left that something else forbids, these.
    """
    given = {index: mask for index, mask in enumerate(masks) if mask is not None}
    if not given:
        return logits
    allowed = _unpack(np.stack(list(given.values())), logits)
    if len(given) == len(logits):
        return _keep(logits, allowed)
    rows = torch.tensor(list(given), device=logits.device)
    logits = logits.clone()
    logits[rows] = _keep(logits[rows], allowed)
    return logits


def _keep(logits: Tensor, allowed: Tensor) -> Tensor:
    lowest, infinity = torch.finfo(logits.dtype).min, float("inf")
    # What is not a number is left out, too, lest it be taken for the likeliest.
    kept = logits.nan_to_num(nan=-infinity, posinf=infinity, neginf=lowest)
    return kept.masked_fill_(~allowed, -infinity)


def _unpack(masks: Mask, logits: Tensor) -> Tensor:
    """Booleans `[rows, vocabulary]` of `[rows, words]` on the CPU."""
    words = torch.from_numpy(masks)
    if logits.is_cuda:
        words = words.pin_memory()
    octets = words.view(torch.uint8).to(logits.device, non_blocking=True)
    bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=logits.device)
    allowed = (octets[..., None] & bits).bool().flatten(1)
    vocabulary = logits.shape[-1]
    return pad(allowed, (0, max(0, vocabulary - allowed.shape[-1])))[:, :vocabulary]
