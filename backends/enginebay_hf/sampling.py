"""From logits to tokens.

On a GPU, rows that ask for no more than penalties, bias, temperature, top_k, top_p and min_p are
sampled together. Order: penalties, bias and forbidden ends, masks, then temperature, top_k, top_p,
min_p, then one draw by the inverse of the distribution function, with one random number of the
row's own. All other rows, and all rows on a CPU, are sampled by their `RowSampler`, which has the
same order and is faster there. A row's token does not depend on what other rows there are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from enginebay import Mask, RowLogprobs, TokenLogprob, TokenText, TopLogprob, text_and_bytes
from enginebay_hf.masks import keep_to_masks
from enginebay_hf.penalties import change_logits
from enginebay_hf.sampler_state import SamplerState
from enginebay_hf.truncation import lowest_drawn

_LOWEST_TEMPERATURE = 1e-6


def sample(logits: Tensor, rows: Sequence[SamplerState], masks: Sequence[Mask | None]) -> Tensor:
    """One token id a row, `[rows]`, on the device of `logits` (float32 `[rows, vocabulary]`).

    Temperature 0 takes the likeliest token, the lowest id of several. `masks[i]` has the tokens
    that row i may take, whatever else forbids them; None allows all.
    """
    on_cpu = logits.device.type == "cpu"
    apart = {
        i: row.row_sampler
        for i, row in enumerate(rows)
        if row.row_sampler and (on_cpu or not row.together)
    }
    if not apart:
        return _sample_together(logits, rows, masks)
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    indices = torch.tensor(list(apart), device=logits.device)
    values = (logits if len(apart) == len(rows) else logits[indices]).cpu().numpy()
    chosen = [
        sampler.sample(row[: sampler.vocab_size], masks[i])
        for row, (i, sampler) in zip(values, apart.items(), strict=True)
    ]
    tokens[indices] = torch.tensor(chosen, device=logits.device)
    if together := [i for i in range(len(rows)) if i not in apart]:
        indices = torch.tensor(together, device=logits.device)
        tokens[indices] = _sample_together(
            logits[indices], [rows[i] for i in together], [masks[i] for i in together]
        )
    return tokens


def _sample_together(
    logits: Tensor, rows: Sequence[SamplerState], masks: Sequence[Mask | None]
) -> Tensor:
    logits = keep_to_masks(change_logits(logits, rows), masks)
    drawn = [index for index, row in enumerate(rows) if not row.is_greedy]
    if not drawn:
        return logits.argmax(-1)
    if len(drawn) == len(rows):
        return _draw(logits, rows)
    tokens = logits.argmax(-1)
    indices = torch.tensor(drawn, device=logits.device)
    tokens[indices] = _draw(logits[indices], [rows[index] for index in drawn])
    return tokens


def _draw(logits: Tensor, rows: Sequence[SamplerState]) -> Tensor:
    scaled = _scale(logits, rows)
    weights = scaled.exp()
    weights[scaled < lowest_drawn(scaled, [row.params for row in rows])] = 0
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    uniform = torch.tensor([row.uniform() for row in rows], dtype=logits.dtype)[:, None]
    # Short of the whole, lest a number that rounds to 1 points past the last token with weight.
    target = uniform.clamp(max=1 - 2**-24).to(total.device) * total
    tokens = torch.searchsorted(cumulative, target, right=True)
    return torch.where(total > 0, tokens, 0).squeeze(-1)


def _scale(logits: Tensor, rows: Sequence[SamplerState]) -> Tensor:
    """Logits after temperature, each row's highest moved to 0 first, so that none overflows.

    Where every token is forbidden, and for what is not a number, the result is minus infinity.
    """
    temperature = torch.tensor(
        [max(row.params.temperature, _LOWEST_TEMPERATURE) for row in rows], dtype=logits.dtype
    )
    infinity = float("inf")
    logits = logits.nan_to_num(nan=-infinity, neginf=-infinity)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature.to(logits.device)[:, None]
    return scaled.nan_to_num_(nan=-infinity, neginf=-infinity)


def logprobs(
    logits: Tensor,
    tokens: Tensor,
    rows: Sequence[SamplerState],
    token_text: TokenText,
) -> list[TokenLogprob | None]:
    """The sampled tokens' natural-log probabilities by the model itself, for rows that ask.

    `logits` are the model's own, before anything that sampling does to them.
    """
    entries: list[TokenLogprob | None] = [None] * len(rows)
    counts = {i: row.params.logprobs for i, row in enumerate(rows)}
    asked = {i: count for i, count in counts.items() if count is not None}
    if not asked:
        return entries
    if len(asked) < len(rows):
        indices = torch.tensor(list(asked), device=logits.device)
        logits, tokens = logits[indices], tokens[indices]
    found = token_logprobs(logits, tokens, list(asked.values()), token_text)
    for index, entry in zip(asked, found, strict=True):
        entries[index] = entry
    return entries


def token_logprobs(
    logits: Tensor,
    tokens: Tensor,
    counts: Sequence[int],
    token_text: TokenText,
    *,
    ranked: bool = False,
) -> list[TokenLogprob]:
    """Each row's token logprob by the model itself, and that many of the likeliest tokens.

    `ranked`: with the rank of each token.
    """
    if logits.device.type == "cpu":
        ours = zip(logits.numpy(), tokens.tolist(), counts, strict=True)
        return [RowLogprobs(row, n).of(i, token_text, ranked=ranked) for row, i, n in ours]
    distribution = logits.log_softmax(-1)
    chosen = distribution.gather(-1, tokens[:, None]).squeeze(-1).tolist()
    top = distribution.topk(min(max(counts), logits.shape[-1]))
    ranks = _ranks(distribution, tokens) if ranked else [None] * len(tokens)
    columns = zip(counts, tokens.tolist(), chosen, ranks, *map(Tensor.tolist, top), strict=True)
    entries = []
    for count, token, logprob, rank, values, ids in columns:
        likeliest = tuple(
            TopLogprob(i, text, v, own_bytes)
            for i, v in zip(ids[:count], values[:count], strict=True)
            for text, own_bytes in (text_and_bytes(token_text(i)),)
        )
        text, own_bytes = text_and_bytes(token_text(token))
        entries.append(TokenLogprob(token, text, logprob, likeliest, rank, own_bytes))
    return entries


def _ranks(distribution: Tensor, tokens: Tensor) -> list[int]:
    own = distribution.gather(-1, tokens[:, None])
    before = torch.arange(distribution.shape[-1], device=tokens.device) < tokens[:, None]
    likelier = (distribution > own) | ((distribution == own) & before)
    ranks: list[int] = (likelier.sum(-1) + 1).tolist()
    return ranks
