"""Attention over pages, one sequence after the other: plain, slow, and its own proof."""

import torch
import torch.nn.functional as F
from torch import Tensor


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool,
    softmax_scale: float,
) -> Tensor:
    """What exllamav2 asks of `flash_attn_with_kvcache`, without windows and soft caps.

    `q` is `[batch, queries, heads, head_dim]`, the caches `[pages, page, kv_heads, head_dim]`; `k`
    and `v` are appended to them, where they are not there already.
    """
    assert causal
    page = k_cache.shape[1]
    outputs = []
    for row, length in enumerate(cache_seqlens.tolist()):
        pages = block_table[row].long()
        if k is not None and v is not None:
            places = torch.arange(length, length + k.shape[1])
            length += k.shape[1]
            k_cache[pages[places // page], places % page] = k[row]
            v_cache[pages[places // page], places % page] = v[row]
        pages = pages[: -(-length // page)]
        keys = k_cache[pages].flatten(0, 1)[:length].transpose(0, 1)
        values = v_cache[pages].flatten(0, 1)[:length].transpose(0, 1)
        queries = q[row].transpose(0, 1)
        seen = torch.ones(queries.shape[1], length, dtype=torch.bool)
        seen = seen.tril(length - queries.shape[1])
        output = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, scale=softmax_scale, enable_gqa=True
        )
        outputs.append(output.transpose(0, 1))
    return torch.stack(outputs)
