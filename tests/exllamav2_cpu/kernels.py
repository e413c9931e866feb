"""Norms, rotary embeddings and the rest of the arithmetic of unquantised layers.

All results go into tensors of the caller's, as in the extension. Computed in float32, rounded once.
"""

import torch
from torch import Tensor

FLOAT16_MAX = 65504.0


def rms_norm(x: Tensor, w: Tensor, y: Tensor, epsilon: float) -> None:
    """`y = x * w / sqrt(mean(x²) + epsilon)` over rows of `x`."""
    rows = _finite(x)
    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon)
    y.copy_(rows * w.float() * scale)


def rms_norm_(x: Tensor, w: Tensor, epsilon: float) -> None:
    rms_norm(x, w, x, epsilon)


def layer_norm(x: Tensor, w: Tensor, b: Tensor, y: Tensor, epsilon: float) -> None:
    """`b` is a meta tensor where there is no bias."""
    rows = _finite(x)
    rows = rows - rows.mean(-1, keepdim=True)
    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon)
    result = rows * w.float() * scale
    y.copy_(result if b.is_meta else result + b.float())


def layer_norm_(x: Tensor, w: Tensor, b: Tensor, epsilon: float) -> None:
    layer_norm(x, w, b, x, epsilon)


def head_norm(x: Tensor, w: Tensor, b: Tensor, y: Tensor, epsilon: float, rms: bool) -> None:
    """Norms over the last dimension, one head each; `w` is `[heads, head_dim]`."""
    heads = x.view(-1, *w.shape)
    if rms:
        result = torch.empty_like(heads)
        rms_norm(heads, w, result, epsilon)
        y.copy_((result if b.is_meta else result + b).view(y.shape))
    else:
        layer_norm(heads, w, b, y.view_as(heads), epsilon)


def head_norm_(x: Tensor, w: Tensor, b: Tensor, epsilon: float, rms: bool) -> None:
    head_norm(x, w, b, x, epsilon, rms)


def rope_(
    x: Tensor,
    sin: Tensor,
    cos: Tensor,
    past_len: int,
    num_heads: int,
    head_dim: int,
    offsets: Tensor,
    neox_style: bool,
) -> None:
    """Rotate `x`, `[batch, queries, heads, head_dim]` in any view, in place.

    A row's position is `past_len` plus its offset; the offset alone where `past_len` is -1.
    """
    batch = x.shape[0]
    heads = x.view(batch, -1, num_heads, head_dim)
    width = sin.shape[-1]
    start = torch.zeros(batch, dtype=torch.long)
    if not offsets.is_meta:
        start = offsets.long().view(-1)
    if past_len != -1:
        start = start + past_len
    positions = (start[:, None] + torch.arange(heads.shape[1])).clamp(min=0)
    sines = sin.view(-1, width)[positions][:, :, None].float()
    cosines = cos.view(-1, width)[positions][:, :, None].float()
    rotated = heads[..., :width]
    values = rotated.float()
    if neox_style:
        half = width // 2
        left, right = values[..., :half], values[..., half:]
        swapped = torch.cat((-right, left), -1)
        # The kernel reads the left half of both tables only.
        sines = torch.cat((sines[..., :half],) * 2, -1)
        cosines = torch.cat((cosines[..., :half],) * 2, -1)
    else:
        swapped = torch.stack((-values[..., 1::2], values[..., 0::2]), -1).flatten(-2)
    rotated.copy_(values * cosines + swapped * sines)


def gen_mrope_pos_ids(
    mrope_pos_ids: Tensor,
    ids: Tensor,
    merge_size: int,
    spans: list[tuple[int, int]],
    grids: list[tuple[int, int, int]],
) -> int:
    """Fill `[3, positions]` with the axes' positions of tokens; returns the next one.

    After `exllamav2_ext/ext_rope.cpp`: within a span of ids they count frames, lines and columns
    from where the text before it ends; the text behind it goes on after the largest.
    """
    base = behind = 0
    for place in range(mrope_pos_ids.shape[1]):
        token = int(ids[place]) if place < len(ids) else -1
        for (start, end), (frames, height, width) in zip(spans, grids, strict=True):
            if start <= token < end:
                lines, columns = height // merge_size, width // merge_size
                step = token - start
                axes = (
                    base + step // columns // lines % frames,
                    base + step // columns % lines,
                    base + step % columns,
                )
                behind = max(behind, *(axis + 1 for axis in axes))
                break
        else:
            axes = (behind,) * 3
            base = behind = behind + 1
        mrope_pos_ids[:, place] = torch.tensor(axes)
    return behind


def softcap_(x: Tensor, scale: float) -> None:
    x.copy_(torch.tanh(x.float() / scale) * scale)


def _finite(x: Tensor) -> Tensor:
    rows = x.float()
    return rows.clamp(-FLOAT16_MAX, FLOAT16_MAX) if x.dtype == torch.float16 else rows
