"""The attention function that a model calls in a packed forward pass.

transformers hands it one layer's queries, keys and values of all tokens, whichever sequences they
belong to. It writes keys and values into the memory and lets each token attend to its own slot.
"""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from enginebay_hf.packed import kernels
from enginebay_hf.packed.kernels import Kind
from enginebay_hf.packed.memory import KeyValueMemory, LayerShape

NAME = "enginebay_packed"
"""What the function is called in `attn_implementation`."""

SHORT = 8
"""Chunks of up to this many tokens are run together with those of neighbouring slots."""

# On CPUs with AMX torch makes a program for each new number of queries and of keys in bfloat16, and
# keeps all of them: these are rounded up, lest they fill the memory.
_ROUND = 32


class Attention(Protocol):
    """The attention of one forward pass."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        """`query`, `key`, `value` are `[heads, tokens, size]`; result `[tokens, heads, size]`."""


# Not an argument of the model: some classes drop those that they do not know.
_current: ContextVar[Attention | None] = ContextVar("_current", default=None)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    attention = _current.get()
    if attention is None:
        raise RuntimeError("this model has been set up for packed forward passes only")
    kind = Kind(scaling, sliding_window, softcap, s_aux)
    return attention(module.layer_idx, query[0], key[0], value[0], kind)[None], None


# No mask function beside it, so that transformers makes no masks.
AttentionInterface.register(NAME, _attend)


def forward(attention: Attention, call: Callable[[], Any]) -> Any:
    """What `call()` returns, with `attention` in the model's layers meanwhile."""
    token = _current.set(attention)
    try:
        return call()
    finally:
        _current.reset(token)


def layer_shapes(model: PreTrainedModel) -> dict[int, LayerShape]:
    """The shapes of each layer's keys and values (`attending_layers`)."""
    return {layer: shape for layer, (shape, _) in attending_layers(model).items()}


def attending_layers(model: PreTrainedModel) -> dict[int, tuple[LayerShape, Kind]]:
    """Each layer's keys and values and how it attends, found by a forward pass of one token.

    The model must have been switched to `NAME`.
    """
    layers: dict[int, tuple[LayerShape, Kind]] = {}

    def note(layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        heads, _, size = key.shape
        shape = LayerShape(heads, size, value.shape[-1], key.dtype, key.device)
        layers[layer] = shape, kind
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[-1])

    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        forward(note, lambda: model(input_ids=ids, position_ids=ids, use_cache=False))
    return layers


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Chunks of `tokens` tokens each in neighbouring slots, from `slot` up.

    Their tokens are neighbours in the pass, too, from `offset` up. `starts` has how many tokens
    each slot holds before. `reach`, if the group is one chunk with an item whose tokens see all of
    it: the last position that each token sees, in all layers or in those with a window only.
    """

    slot: int
    tokens: int
    offset: int
    starts: Sequence[int]
    reach: Sequence[int] = ()
    windows_only: bool = False

    @property
    def end(self) -> int:
        """The end of the group in the pass (exclusive)."""
        return self.offset + self.tokens * len(self.starts)

    def is_causal(self, window: int | None) -> bool:
        """Whether no token sees a later one, in a layer with this window."""
        return not self.reach or (self.windows_only and not window)


class PackedAttention:
    """Attention of one forward pass: `groups` are its tokens, in order; others attend nothing."""

    def __init__(
        self, memory: KeyValueMemory, groups: Sequence[Group], *, by_products: bool = False
    ) -> None:
        """`by_products`: rows of one token attend by `kernels.attend_rows`."""
        self._memory = memory
        self._groups = groups
        self._by_products = by_products
        self._made: dict[Any, Any] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        results = []
        for group in self._groups:
            tokens = slice(group.offset, group.end)
            self._write(group, keys, key[:, tokens])
            self._write(group, values, value[:, tokens])
            attend = self._attend_short if group.tokens <= SHORT else self._attend_long
            results.append(attend(group, query[:, tokens], keys, values, kind))
        if padding := query.shape[1] - self._groups[-1].end:
            results.append(query.new_zeros(padding, query.shape[0], values.shape[-1]))
        return results[0] if len(results) == 1 else torch.cat(results)

    def _write(self, group: Group, memory: Tensor, new: Tensor) -> None:
        if len(group.starts) == 1:
            start = group.starts[0]
            memory[group.slot, :, start : start + group.tokens] = new
        else:
            slots, positions = self._places(group, memory.device)
            memory[slots, :, positions] = new.transpose(0, 1)

    def _attend_short(
        self, group: Group, query: Tensor, keys: Tensor, values: Tensor, kind: Kind
    ) -> Tensor:
        """All slots at once; queries that share a key head are treated as tokens."""
        rows, tokens = len(group.starts), group.tokens
        heads, key_heads = query.shape[0], keys.shape[1]
        shared = heads // key_heads
        low, high = self._range(group, kind.window)
        slots = slice(group.slot, group.slot + rows)
        folded = query.view(key_heads, shared, rows, tokens, -1).permute(2, 0, 1, 3, 4)
        folded = folded.reshape(rows, key_heads, shared * tokens, -1)
        keys, values = keys[slots, :, low:high], values[slots, :, low:high]
        if self._multiplies(group) and kind.is_plain:
            mask = self._mask(group, kind.window, query, dtype=torch.float32)[:, None]
            return kernels.attend_rows(folded, keys, values, mask, kind).view(rows, heads, -1)
        mask = self._mask(group, kind.window, query)[:, None, None]
        if tokens > 1:
            mask = mask.expand(rows, 1, shared, tokens, high - low)
        result = kernels.attend(
            folded,
            keys,
            values,
            mask.reshape(rows, 1, -1, high - low),
            kind,
            None if kind.sinks is None else _sinks(kind.sinks, key_heads, tokens),
        )
        result = result.view(rows, key_heads, shared, tokens, -1).permute(0, 3, 1, 2, 4)
        return result.reshape(rows * tokens, heads, -1)

    def _multiplies(self, group: Group) -> bool:
        return self._by_products and group.tokens == 1

    def _attend_long(
        self, group: Group, query: Tensor, keys: Tensor, values: Tensor, kind: Kind
    ) -> Tensor:
        """One slot; a key head is read once for each of its queries' heads, but not copied."""
        heads, tokens, size = query.shape
        key_heads = keys.shape[1]
        shared = heads // key_heads
        low, high = self._range(group, kind.window)
        whole = group.starts[0] == 0 and (kind.window is None or tokens <= kind.window)
        causal = whole and group.is_causal(kind.window)
        keys, values = keys[group.slot, :, low:high], values[group.slot, :, low:high]
        if query.device.type == "cpu" and kind.is_plain:
            # In bfloat16 up to 1.6 times faster than the views below; CUDA may have no such kernel.
            padding = (high if causal else _rounded_up(tokens)) - tokens
            mask = None if causal else self._mask(group, kind.window, query, padding)[0]
            result = F.scaled_dot_product_attention(
                F.pad(query, (0, 0, 0, padding))[None],
                keys[None],
                values[None],
                attn_mask=mask,
                is_causal=causal,
                scale=kind.scale,
                enable_gqa=shared > 1,
            )[0, :, :tokens]
        else:
            mask = None if causal and high == tokens else self._mask(group, kind.window, query)[0]
            result = kernels.attend(
                query.reshape(key_heads, shared, tokens, size),
                keys[:, None].expand(-1, shared, -1, -1),
                values[:, None].expand(-1, shared, -1, -1),
                mask,
                kind,
                None if kind.sinks is None else kind.sinks.view(key_heads, shared, 1, 1),
            )
        return result.reshape(heads, tokens, -1).transpose(0, 1)

    def _range(self, group: Group, window: int | None) -> tuple[int, int]:
        """The positions that any of the group's tokens may attend to, and a few more."""
        high = _rounded_up(max(group.starts) + group.tokens)
        low = max(0, min(group.starts) - window + 1) // _ROUND * _ROUND if window else 0
        if self._multiplies(group):
            high = low + kernels.length(high - low)
        return low, min(high, self._memory.capacity)

    def _places(self, group: Group, device: torch.device) -> tuple[Tensor, Tensor]:
        made = self._made.get((group, device))
        if made is None:
            starts = torch.tensor(group.starts, device=device)[:, None]
            slots = torch.arange(group.slot, group.slot + len(group.starts), device=device)
            made = (
                slots.repeat_interleave(group.tokens),
                (starts + torch.arange(group.tokens, device=device)).flatten(),
            )
            self._made[group, device] = made
        return made[0], made[1]

    def _mask(
        self,
        group: Group,
        window: int | None,
        query: Tensor,
        padding: int = 0,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """`[rows, tokens, positions]`: 0 where a token may attend, minus infinity elsewhere.

        Tokens of `padding` come after the others and may attend everywhere.
        """
        dtype = dtype or query.dtype
        name = (group, window, query.device, dtype, padding)
        mask: Tensor | None = self._made.get(name)
        if mask is None:
            positions = self._places(group, query.device)[1].view(-1, group.tokens, 1)
            columns = torch.arange(*self._range(group, window), device=query.device)
            last = positions
            if not group.is_causal(window):
                last = torch.tensor(group.reach, device=query.device).view(1, -1, 1)
            hidden = columns > last
            if window:
                hidden |= columns <= positions - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=query.device)
            mask = F.pad(mask.masked_fill_(hidden, -math.inf), (0, 0, 0, padding))
            self._made[name] = mask
        return mask


def _rounded_up(number: int) -> int:
    return -(-number // _ROUND) * _ROUND


def _sinks(sinks: Tensor, key_heads: int, tokens: int) -> Tensor:
    return sinks.view(1, key_heads, -1, 1).repeat_interleave(tokens, dim=2)
