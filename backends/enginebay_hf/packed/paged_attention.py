"""Attention over a paged KV cache, with one kernel call per layer."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from enginebay import Chunk
from enginebay_hf.packed.kernels import Kind
from enginebay_hf.packed.pages import PagedMemory

Kernel = Callable[..., Any]
"""A function with the signature and semantics of `torch.nn.attention.varlen.varlen_attn`."""

_DTYPES = (torch.float16, torch.bfloat16)


class NotPagedError(Exception):
    """The kernel or the device does not support this model; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The layout of a pass's tokens and sequences in memory, in tensors on the memory's device.

    `places`: for each token of the pass, where in the memory it is written, counted in tokens
    (int64). `bounds`: where the sequences begin in the pass, and its end. `lengths`: how many
    tokens each sequence has, those of the pass included. `key_bounds`: their sums, from zero on.
    `table`: `[sequences, pages]`. The last four are int32. `longest_chunk` and `longest` limit the
    tokens of a sequence in the pass, and in all.
    """

    places: Tensor
    bounds: Tensor
    lengths: Tensor
    key_bounds: Tensor
    table: Tensor
    longest_chunk: int
    longest: int


def layout(memory: PagedMemory, chunks: Sequence[Chunk]) -> Layout:
    """The layout of a pass that runs `chunks` one after another."""
    size = memory.page_size
    counts = torch.tensor([len(chunk.token_ids) for chunk in chunks])
    starts = torch.tensor([chunk.start for chunk in chunks])
    lengths = starts + counts
    bounds = sums(counts)
    longest = int(lengths.max())
    table = memory.tables[[chunk.slot for chunk in chunks], : -(-longest // size)]
    rows = torch.arange(len(chunks)).repeat_interleave(counts)
    positions = torch.arange(len(rows)) - (bounds[:-1] - starts)[rows]
    places = table[rows, positions // size].long() * size + positions % size
    return Layout(
        places.to(memory.device),
        bounds.to(memory.device, torch.int32),
        lengths.to(memory.device, torch.int32),
        sums(lengths).to(memory.device, torch.int32),
        table.to(memory.device),
        int(counts.max()),
        longest,
    )


def sums(counts: Tensor) -> Tensor:
    """Zero, and the sums of the first 1, 2, ... of `counts`, in their dtype."""
    return F.pad(counts.cumsum(0, dtype=counts.dtype), (1, 0))


class PagedAttention:
    """Attention of one forward pass; tokens after those of the layout attend to nothing."""

    def __init__(self, memory: PagedMemory, layout: Layout, kernel: Kernel) -> None:
        self._memory = memory
        self._layout = layout
        self._kernel = kernel

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        if kind.softcap is not None or kind.sinks is not None:
            raise NotPagedError("its attention has soft caps or sinks")
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        places = self._layout.places
        tokens = slice(len(places))
        keys.flatten(0, 1).index_copy_(0, places, key[:, tokens].transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, places, value[:, tokens].transpose(0, 1))
        result: Tensor = self._kernel(
            query[:, tokens].transpose(0, 1),
            keys,
            values,
            self._layout.bounds,
            self._layout.key_bounds,
            self._layout.longest_chunk,
            self._layout.longest,
            scale=kind.scale,
            window_size=(kind.window - 1 if kind.window else -1, 0),
            enable_gqa=query.shape[0] != key.shape[0],
            seqused_k=self._layout.lengths,
            block_table=self._layout.table,
        )
        padding = query.shape[1] - len(places)
        return F.pad(result, (0, 0, 0, 0, 0, padding)) if padding else result


def find_kernels(device: torch.device, dtype: torch.dtype) -> list[Kernel]:
    """The kernel of this torch for `device`, in the ways to call it; a `NotPagedError` if none.

    That it is there does not mean that it works: torch says so only when it is called. Of what it
    may stand for, flash-attention 2 demands `cu_seq_k`, which 3 refuses where there are pages.
    """
    if device.type != "cuda":
        raise NotPagedError(f"there is no kernel for device {device}")
    if dtype not in _DTYPES:
        raise NotPagedError(f"there is no kernel for {str(dtype).removeprefix('torch.')}")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise NotPagedError(f"torch {torch.__version__} has no varlen_attn") from error
    needed = {"scale", "window_size", "enable_gqa", "seqused_k", "block_table"}
    if missing := needed - set(inspect.signature(varlen_attn).parameters):
        names = ", ".join(sorted(missing))
        raise NotPagedError(f"varlen_attn of torch {torch.__version__} has no {names}")

    def without_key_bounds(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bounds: Tensor,
        _: Tensor,
        *limits: int,
        **rest: Any,
    ) -> Any:
        return varlen_attn(query, key, value, bounds, None, *limits, **rest)

    return [varlen_attn, without_key_bounds]
