"""Changes to the logits of single tokens: penalties, bias, forbidden end tokens.

Each kind is one indexed operation on the device, however many rows ask for it.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from enginebay_hf.sampler_state import SamplerState


def change_logits(logits: Tensor, rows: Sequence[SamplerState]) -> Tensor:
    """What sampling goes by: a changed copy of `[rows, vocabulary]`, or `logits` if none asks."""
    if not any(row.changes_logits for row in rows):
        return logits
    logits = logits.clone()
    _penalize_repetition(logits, rows)
    _add(logits, [_count_penalties(row) for row in rows])
    _add(logits, [row.params.logit_bias for row in rows])
    _add(logits, [_forbidden_ends(row) for row in rows])
    _keep_allowed(logits, rows)
    return logits


def _penalize_repetition(logits: Tensor, rows: Sequence[SamplerState]) -> None:
    """As in CTRL (Keskar et al., 2019), over the tokens of prompt and completion."""
    asking = [index for index, row in enumerate(rows) if row.params.repetition_penalty != 1]
    if not asking:
        return
    seen = [rows[index].seen_tokens() for index in asking]
    counts = torch.tensor([len(tokens) for tokens in seen])
    penalties = torch.tensor([rows[index].params.repetition_penalty for index in asking])
    device = logits.device
    at = torch.tensor(asking).repeat_interleave(counts).to(device), torch.cat(seen).to(device)
    penalty = penalties.repeat_interleave(counts).to(device)
    values = logits[at]
    # A token seen in both prompt and completion is written twice, with the same value.
    logits[at] = torch.where(values > 0, values / penalty, values * penalty)


def _count_penalties(row: SamplerState) -> Mapping[int, float]:
    """https://platform.openai.com/docs/api-reference/parameter-details: completion only."""
    presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
    if not presence and not frequency:
        return {}
    return {token: -presence - frequency * count for token, count in row.counts.items()}


def _forbidden_ends(row: SamplerState) -> Mapping[int, float]:
    return dict.fromkeys(row.end_token_ids, -math.inf) if row.must_go_on else {}


def _keep_allowed(logits: Tensor, rows: Sequence[SamplerState]) -> None:
    """Forbid all but `allowed_token_ids`."""
    for row, state in zip(logits, rows, strict=True):
        if state.params.allowed_token_ids:
            allowed = torch.tensor(state.params.allowed_token_ids, device=logits.device)
            kept = row[allowed]
            row.fill_(-math.inf)
            row[allowed] = kept


def _add(logits: Tensor, values: Sequence[Mapping[int, float]]) -> None:
    """Add to each row what `values` says about some of its tokens."""
    entries = [
        (index, token, value)
        for index, of_row in enumerate(values)
        for token, value in of_row.items()
    ]
    if entries:
        indices, tokens, added = zip(*entries, strict=True)
        at = torch.tensor((indices, tokens), device=logits.device).unbind()
        logits[at] += torch.tensor(added, dtype=logits.dtype, device=logits.device)
