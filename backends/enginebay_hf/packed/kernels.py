"""How queries attend to the keys and values of their rows.

torch's own function does it where it knows the kind of attention. For the few queries of a decoding
step it asks MKL for products of bfloat16, whose code for processors of other makers than Intel is
generic; oneDNN, which torch asks for batched products, has code for their AVX512-BF16. On such a
processor (Zen 5, one core) batched products take 0.4 to 0.9 of the time where there is enough to
multiply: from 8 rows of 128 positions, or one of 1,024, with 4 key heads of 64.
"""

import logging
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

# Numbers of keys from which products are faster; with twice as many they are faster yet.
_ENOUGH = 1 << 18
# oneDNN makes a program for each number of rows and of positions, of 0.8 MB, and keeps it: for each
# number of positions there are two of rows, and in an octave there are four of positions.
_LENGTHS = 4
_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Kind:
    """A layer's kind of attention: what transformers passes besides queries, keys and values."""

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether weights are the softmax of scores, and nothing else happens to either."""
        return self.softcap is None and self.sinks is None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kind: Kind,
    sinks: Tensor | None,
) -> Tensor:
    """Attention over `[rows, heads, tokens, size]`; without a mask it is causal.

    torch's own function where it knows the kind: it has neither soft caps (Gemma 2) nor sinks
    (gpt-oss: a logit a head that takes its share of the weight).
    """
    if kind.is_plain:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=kind.scale
        )
    scale = query.shape[-1] ** -0.5 if kind.scale is None else kind.scale
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    if mask is None:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    else:
        scores = scores + mask
    if sinks is not None:
        column = sinks.float().expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return weights.to(value.dtype) @ value


def attend_rows(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, kind: Kind) -> Tensor:
    """Plain attention of rows of one token, by batched products for as many as it pays for.

    `query` is `[rows, key heads, queries of the head, size]`, keys and values are `[rows, key
    heads, positions, size]` and views of slots side by side; `mask` is what is added to scores, in
    float32. Products are rounded to bfloat16, as in transformers' eager attention.
    """
    rows, few = len(query), _rows_together(keys)
    if rows < few:
        return attend(query, keys, values, mask, kind, None)
    result = query.new_empty(*query.shape[:-1], values.shape[-1])
    scale = query.shape[-1] ** -0.5 if kind.scale is None else kind.scale
    first = 0
    while first < rows:
        left = rows - first
        each = slice(first, first + (2 * few if left >= 2 * few else min(few, left)))
        parts = query[each], keys[each], values[each], mask[each]
        if left >= few:
            _multiply(*parts, scale, result[each])
        else:
            result[each] = attend(*parts, kind, None)
        first = each.stop
    return result


def _rows_together(keys: Tensor) -> int:
    """How many rows have enough to multiply, a power of two."""
    return 1 << (-(-_ENOUGH // max(keys[0].numel(), 1)) - 1).bit_length()


def _multiply(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, result: Tensor
) -> None:
    rows, heads, queries, _ = query.shape
    products = torch.bmm(keys.flatten(0, 1), query.flatten(0, 1).transpose(1, 2))
    products = products.view(rows, heads, -1, queries).transpose(2, 3)
    scores = torch.empty(products.shape, dtype=torch.float32)
    torch.add(mask, products, alpha=scale, out=scores)
    weights = scores.softmax(-1).to(values.dtype)
    torch.bmm(weights.flatten(0, 1), values.flatten(0, 1), out=result.flatten(0, 1))


def length(positions: int) -> int:
    """At least so many positions: one of the few numbers that `attend_rows` should read."""
    step = 1 << max(0, (positions - 1).bit_length() - _LENGTHS.bit_length())
    return -(-positions // step) * step


def products_pay() -> bool:
    """Whether `attend_rows` is right on this processor and should be faster there."""
    try:
        generic = torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()
        return generic and _works()
    except Exception:
        logger.debug("no attention by batched products", exc_info=True)
        return False


def _works() -> bool:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(2, 2, tokens, 64, generator=generator).bfloat16() for tokens in (3, 32, 32)
    )
    mask = torch.zeros(2, 1, 1, 32)
    mask[..., 20:] = -math.inf
    actual = torch.full_like(query, math.nan)
    _multiply(query, keys, values, mask, 0.125, actual)
    expected = attend(query, keys, values, mask, Kind(), None)
    return bool((actual - expected).abs().max() < _TOLERANCE)
