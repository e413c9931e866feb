"""What changes logits and filters before a token is chosen: `exllamav2_ext/ext_sampling.cpp`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def apply_rep_penalty(
    sequence: Tensor,
    penalty_max: float,
    sustain: int,
    decay: int,
    alpha_frequency: float,
    alpha_presence: float,
    logits: Tensor,
) -> None:
    """Penalise, in place, the tokens among the last `sustain + decay` of each sequence.

    The penalty that a token's last occurrence has holds; those of the frequency add up. Over the
    last `decay` tokens of the range all three fade. `sustain` -1 is the whole sequence.
    """
    if sequence.dtype != torch.long or logits.dtype != torch.float:
        raise TypeError("sequence must be long and logits float")
    rows = logits.view(sequence.shape[0], -1)
    for ids, row in zip(sequence, rows, strict=True):
        _penalise(
            ids.numpy(), penalty_max, sustain, decay, alpha_frequency, alpha_presence, row.numpy()
        )


def _penalise(
    ids: np.ndarray,
    penalty_max: float,
    sustain: int,
    decay: int,
    frequency: float,
    presence: float,
    logits: np.ndarray,
) -> None:
    full = len(ids) if sustain == -1 else sustain
    backwards = ids[max(len(ids) - full - decay, 0) :][::-1]
    fading = np.maximum(np.arange(len(backwards)) - full, 0) / decay if decay else 0.0
    strength = np.broadcast_to(1.0 - fading, backwards.shape)
    known = (backwards >= 0) & (backwards < len(logits))
    backwards, strength = backwards[known], strength[known]
    tokens, last, inverse = np.unique(backwards, return_index=True, return_inverse=True)
    repetition = 1.0 + (penalty_max - 1.0) * strength[last]
    values = logits[tokens].astype(np.float64)
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= presence * strength[last]
    values -= frequency * np.bincount(inverse, weights=strength, minlength=len(tokens))
    logits[tokens] = values


def logit_filter_exclusive(filter: Tensor, exclusive_lists: Sequence[Sequence[int]]) -> None:
    """Exclude, in each row of `filter`, the ids that are not in the row's sorted list."""
    if filter.shape[0] != len(exclusive_lists):
        raise RuntimeError("Number of lists does not match batch size")
    for row, ids in zip(filter, exclusive_lists, strict=True):
        if not len(ids):
            raise IndexError("list index out of range")
        position = 0
        for token in ids:
            row[position:token] = False
            position = max(position, token) + 1  # one that is out of order lets another pass
        row[position:] = False


def fast_fill_cpu_ones_bool(tensor: Tensor) -> None:
    tensor.fill_(True)


def fast_fadd_cpu(a: Tensor, b: Tensor) -> None:
    """Add `b` to every row of `a`, in place."""
    if a.numel() % b.numel():
        raise RuntimeError("a and b are incompatible sizes")
    a.view(-1, b.numel()).add_(b.view(-1))


def fast_copy_cpu(dst: Tensor, src: Tensor) -> None:
    dst.copy_(src)
