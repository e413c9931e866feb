"""top_k, top_p and min_p: which tokens may be drawn at all.

Each keeps the tokens from some probability upwards, so together they are one number a row: the
lowest logit that may be drawn. Tokens as likely as the last one kept are kept too, which makes the
answer independent of the order that sorting happens to leave ties in.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from enginebay import SamplingParams

# Sorting a whole vocabulary costs more than all the rest of sampling, and the nucleus is nearly
# always within the first few hundred tokens.
_WIDTHS = (256, 4096)


def lowest_drawn(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The lowest logit of each row that top_k, then top_p, then min_p leave; `[rows, 1]`.

    `logits` is `[rows, vocabulary]` after temperature, with each row's highest at 0.
    """
    vocabulary = logits.shape[-1]
    min_p = [math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params]
    lowest = _column(logits, min_p)
    cut = [i for i, p in enumerate(params) if 0 < p.top_k < vocabulary or p.top_p < 1]
    if cut:
        top_k = [params[i].top_k for i in cut]
        top_p = [params[i].top_p for i in cut]
        rows = torch.tensor(cut, device=logits.device)
        ranked = _lowest_by_rank(
            logits[rows],
            _column(logits, [k if k > 0 else vocabulary for k in top_k]),
            _column(logits, [p if p < 1 else math.inf for p in top_p]),
        )
        lowest[rows] = torch.maximum(lowest[rows], ranked)
    return lowest


def _lowest_by_rank(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    vocabulary = logits.shape[-1]
    lowest = torch.empty_like(top_p)
    pending = torch.arange(len(logits), device=logits.device)
    for width in (*(width for width in _WIDTHS if width < vocabulary), vocabulary):
        found, certain = _among_likeliest(logits[pending], top_k[pending], top_p[pending], width)
        lowest[pending] = found
        pending = pending[~certain.squeeze(-1)]
        if not len(pending):
            break
    return lowest


def _among_likeliest(
    logits: Tensor, top_k: Tensor, top_p: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """The lowest logit kept, looking at the `width` likeliest; and whether it is certain."""
    vocabulary = logits.shape[-1]
    likeliest = logits.topk(width).values
    ranked = torch.arange(width, device=logits.device) < top_k
    weights = likeliest.exp() * ranked
    within = top_k <= width
    mass = torch.where(within, weights.sum(-1, True), logits.exp().sum(-1, True))
    before = weights.cumsum(-1) - weights
    kept = ranked & (before < top_p * mass)
    last = kept.sum(-1, keepdim=True).clamp(min=1) - 1
    ended = (top_k >= vocabulary) & ~kept[:, -1:]
    return likeliest.gather(-1, last), within | ended


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
