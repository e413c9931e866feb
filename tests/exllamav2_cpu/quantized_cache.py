"""Pages of the cache: their rotation, and keys and values in 8 and 4 bits.

After `exllamav2_ext/cuda/cache.cu` and `cache_q.cuh`: 512 values at a time are mixed by a Hadamard
transform over 32 of a kind and quantised with one scale for 32. The sums are in float32 here and in
float16 there, which may move a value by one step.
"""

from functools import cache

import torch
from torch import Tensor

BLOCK = 512
# Bits of keys and values in caches of 4, 6 and 8 bits.
BITS = {4: (4, 4), 6: (8, 4), 8: (8, 8)}


def cache_rotate(cache: Tensor, order: Tensor, temp: Tensor) -> None:
    """`page[order[i]] = page[order[i + 1]]`, and the first one's content goes into the last."""
    pages = order.long()
    cache[pages] = cache[pages.roll(-1)]


def fp16_to_q_kv(
    k_in: Tensor,
    k_out: Tensor,
    k_scales: Tensor,
    v_in: Tensor,
    v_out: Tensor,
    v_scales: Tensor,
    batch_size: int,
    offset: int,
    width: int,
    page_size: int,
    cache_seqlens: Tensor,
    block_table: Tensor,
    wbits: int,
) -> None:
    """Quantise `width` tokens at `offset` of each sequence, or behind its length in its pages."""
    token = k_in.shape[2] * k_in.shape[3]
    if page_size:
        spans = []
        for length, pages in zip(cache_seqlens.tolist(), block_table.tolist(), strict=True):
            for index, page in enumerate(pages):
                start = max(_down(length - index * page_size, token), 0)
                end = min(_up(length - index * page_size + width, token), page_size)
                spans.append(_span(page * page_size, start, end, token))
    else:
        spans = _rows(k_in, batch_size, offset, width, token)
    for bits, source, target, scales in zip(
        BITS[wbits], (k_in, v_in), (k_out, v_out), (k_scales, v_scales), strict=True
    ):
        for start, end in spans:
            codes, factors = quantize(source.view(-1)[start:end], bits)
            target.view(-1)[start * bits // 8 : end * bits // 8] = codes
            scales.view(-1)[start // 32 : end // 32] = factors


def q_to_fp16_kv(
    k_in: Tensor,
    k_out: Tensor,
    k_scales: Tensor,
    v_in: Tensor,
    v_out: Tensor,
    v_scales: Tensor,
    batch_size: int,
    offset: int,
    width: int,
    page_size: int,
    cache_seqlens: Tensor,
    block_table: Tensor,
    wbits: int,
) -> None:
    """Restore `width` tokens at `offset` of each sequence, or all of each in its pages."""
    token = k_out.shape[2] * k_out.shape[3]
    if page_size:
        spans = []
        for length, pages in zip(cache_seqlens.tolist(), block_table.tolist(), strict=True):
            for index, page in enumerate(pages):
                end = min(_up(length - index * page_size, token), page_size)
                spans.append(_span(page * page_size, 0, end, token))
    else:
        spans = _rows(k_out, batch_size, offset, width, token)
    for bits, source, target, scales in zip(
        BITS[wbits], (k_in, v_in), (k_out, v_out), (k_scales, v_scales), strict=True
    ):
        for start, end in spans:
            codes = source.view(-1)[start * bits // 8 : end * bits // 8]
            factors = scales.view(-1)[start // 32 : end // 32]
            target.view(-1)[start:end] = dequantize(codes, factors, bits)


def quantize(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes (uint8, two to a byte where `bits` is 4) and float16 scales of float16 values."""
    steps = 2 ** (bits - 1)
    mixed = _mixed(values.float()).half().float().view(-1, 32)
    largest = mixed.abs().amax(-1, keepdim=True)
    codes = torch.nan_to_num(mixed / largest) * steps + steps * (largest > 0)
    codes = codes.round().clamp(0, 2 * steps - 1).to(torch.uint8).view(-1)
    if bits == 4:
        codes = codes[0::2] | (codes[1::2] << 4)
    return codes, (largest / steps).half().view(-1)


def dequantize(codes: Tensor, scales: Tensor, bits: int) -> Tensor:
    """The float16 values of `quantize`."""
    if bits == 4:
        codes = torch.stack((codes & 0x0F, codes >> 4), -1).view(-1)
    steps = 2 ** (bits - 1)
    mixed = (codes.view(-1, 32).float() - steps) * scales.view(-1, 1).float()
    return (_mixed(mixed.half().float()) / 32).half()


def _mixed(values: Tensor) -> Tensor:
    """The transform over the even and over the odd ones of 64 values."""
    return (_hadamard() @ values.view(-1, 32, 2)).view(-1)


@cache
def _hadamard() -> Tensor:
    matrix = torch.ones(1, 1)
    for _ in range(5):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix


def _rows(
    states: Tensor, batch_size: int, offset: int, width: int, token: int
) -> list[tuple[int, int]]:
    offset, end = _down(offset, token), _up(offset + width, token)
    row = states.shape[1]
    return [_span(index * row, offset, end, token) for index in range(batch_size)]


def _span(base: int, start: int, end: int, token: int) -> tuple[int, int]:
    """The values of some tokens, in whole blocks."""
    first = (base + start) * token
    blocks = -(-max(end - start, 0) * token // BLOCK)
    return first, first + blocks * BLOCK


def _down(tokens: int, token: int) -> int:
    while tokens * token % BLOCK:
        tokens -= 1
    return tokens


def _up(tokens: int, token: int) -> int:
    while tokens * token % BLOCK:
        tokens += 1
    return tokens
