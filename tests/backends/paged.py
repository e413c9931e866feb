"""What torch has only for CUDA devices, in plain torch: paged attention and captured passes."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """`torch.nn.attention.varlen.varlen_attn` for keys and values in pages.

    It multiplies by what lies behind a sequence in its last page, too, as a kernel may.
    """
    assert seqused_k is not None
    assert block_table is not None
    pages, size, key_heads, width = key.shape
    total, heads, _ = query.shape
    assert value.shape == key.shape
    assert query.shape[-1] == width
    assert enable_gqa or heads == key_heads
    for numbers in (cu_seq_q, seqused_k, block_table):
        assert numbers.dtype == torch.int32
        assert numbers.is_contiguous() or numbers is block_table
    assert block_table.stride(-1) == 1
    assert len(cu_seq_q) == len(seqused_k) + 1 == len(block_table) + 1
    assert cu_seq_k is not None
    assert cu_seq_k.dtype == torch.int32
    assert cu_seq_k.tolist() == [0, *seqused_k.cumsum(0).tolist()]
    bounds = cu_seq_q.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == total
    assert block_table.min() >= 0
    assert block_table.max() < pages
    output = torch.empty_like(query)
    for start, end, used, table in zip(
        bounds, bounds[1:], seqused_k.tolist(), block_table, strict=False
    ):
        tokens = end - start
        assert 0 < tokens <= max_q
        assert tokens <= used <= max_k
        of = table[: -(-used // size)].long()
        assert len(of) * size >= used
        keys, values = (
            memory[of].flatten(0, 1).transpose(0, 1).repeat_interleave(heads // key_heads, 0)
            for memory in (key, value)
        )
        scores = query[start:end].transpose(0, 1) @ keys.transpose(1, 2)
        scores = scores * (width**-0.5 if scale is None else scale)
        columns = torch.arange(len(of) * size)[None]
        places = torch.arange(used - tokens, used)[:, None]
        left, right = window_size
        hidden = columns >= used
        if right >= 0:
            hidden = hidden | (columns > places + right)
        if left >= 0:
            hidden = hidden | (columns < places - left)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        output[start:end] = (weights @ values).transpose(0, 1)
    return output


def nothing(*args: Any, **kwargs: Any) -> Any:
    """A kernel that computes no numbers."""
    return varlen_attn(*args, **kwargs) * torch.nan


def refused(*args: Any, **kwargs: Any) -> Any:
    """A kernel on a device that it is not made for."""
    raise RuntimeError("old GPU")


class Captured:
    """Stands for `CudaCapture`: keeps the passes and counts their replays."""

    def __init__(self, device: object = None) -> None:
        self.replays = 0

    def __call__(self, forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        logits = forward()

        def replay() -> Tensor:
            self.replays += 1
            logits.copy_(forward())  # always the same memory, as a graph has it
            return logits

        return replay
