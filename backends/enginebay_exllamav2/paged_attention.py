"""Attention over a paged cache in plain torch, for machines without flash-attn.

Stands in for `flash_attn.flash_attn_with_kvcache` as exllamav2 calls it, whose contract
(https://github.com/Dao-AILab/flash-attention) this keeps. It gathers the pages of each sequence
before every product, so a step takes time and memory with the longest context in the batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_CAPPED_QUERIES = 256  # whose scores are in memory together, in float32
_FEW_QUERIES = 8
"""What a decoding pass asks of a sequence at most; prompts ask more."""


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = True,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """`[sequences, queries, heads, head_dim]`: the attention output of each query.

    `q` is `[sequences, queries, heads, head_dim]`, the caches are `[pages, page_size, kv_heads,
    head_dim]`, `block_table` `[sequences, pages]` names the pages of each sequence in order, and
    `cache_seqlens` `[sequences]` says how many tokens they hold. `k` and `v`, of the queries, are
    written after those first. Queries are the last tokens of their sequence. A query sees
    `window_size[0]` tokens before its own; -1 is all.
    """
    sequences, queries, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]
    table, lengths = block_table.long(), cache_seqlens.long()
    steps = torch.arange(queries, device=q.device)
    if k is not None and v is not None:
        positions = lengths[:, None] + steps
        pages = table.gather(1, positions // page_size)
        k_cache[pages, positions % page_size] = k.to(k_cache.dtype)
        v_cache[pages, positions % page_size] = v.to(v_cache.dtype)
        lengths = lengths + queries
    own = lengths[:, None] - queries + steps if causal else lengths[:, None] - 1
    places = torch.arange(table.shape[1] * page_size, device=q.device)
    visible = places <= own[:, :, None]
    if window_size[0] >= 0:
        visible &= places >= own[:, :, None] - window_size[0]
    groups = heads // kv_heads
    # Heads that share keys are queries of one head where few are asked, else the keys are copied.
    folded = groups if queries <= _FEW_QUERIES else 1
    asked = q.view(sequences, queries, heads // folded, folded, head_dim).permute(0, 2, 3, 1, 4)
    asked = asked.reshape(sequences, heads // folded, folded * queries, head_dim)
    mask = visible[:, None].expand(-1, folded, queries, -1).flatten(1, 2)[:, None]
    keys, values = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache))
    if folded < groups:
        keys, values = (each.repeat_interleave(groups, dim=1) for each in (keys, values))
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    if softcap:
        asked_parts, masks = (torch.split(each, _CAPPED_QUERIES, 2) for each in (asked, mask))
        mixed = torch.cat(
            [
                _capped(part, visible_part, keys, values, scale, softcap)
                for part, visible_part in zip(asked_parts, masks, strict=True)
            ],
            dim=2,
        )
    else:
        mixed = F.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=scale)
    mixed = mixed.to(q.dtype).view(sequences, heads // folded, folded, queries, head_dim)
    return mixed.permute(0, 3, 1, 2, 4).reshape(q.shape).contiguous()


def _capped(
    asked: Tensor, mask: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention with soft-capped scores (Gemma 2), which torch's own lacks."""
    scores = (asked.float() @ keys.float().mT).mul_(scale / softcap).tanh_().mul_(softcap)
    return scores.masked_fill_(~mask, float("-inf")).softmax(-1) @ values.float()
