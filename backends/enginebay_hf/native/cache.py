"""Rows of a transformers cache that join and leave a batch.

Keys and values are `[rows, heads, tokens, size]`, right-aligned: the newest token of every row is
last, shorter rows are padded on the left, and the attention mask hides the padding. Sliding layers
hold the end of that only. Recurrent and convolution states are `[rows, ...]`, without tokens.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


def is_empty(cache: Cache) -> bool:
    """Whether a model that was given this cache has put nothing into it."""
    return not any(
        _attends(layer)
        or any(state is not None for states in _states(layer) for state in states.values())
        for layer in _layers(cache)
    )


def pick(cache: Cache, row: int, crop: int) -> Cache:
    """A cache of one row alone, without its first `crop` tokens, which are padding."""
    picked = copy(cache)
    picked.layers = [_copy(layer) for layer in _layers(cache)]
    select(picked, torch.tensor([row]), crop)
    return picked


def append(cache: Cache, newcomers: Cache) -> None:
    """Add the rows of `newcomers` below those of `cache`."""
    for layer, new in zip(_layers(cache), _layers(newcomers), strict=True):
        if _attends(layer):
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = max(layer.cumulative_length, new.cumulative_length)
            layer.keys = _stack(layer.keys, new.keys)
            layer.values = _stack(layer.values, new.values)
        for states, new_states in zip(_states(layer), _states(new), strict=True):
            for index, state in new_states.items():
                if state is not None:
                    states[index] = torch.cat((states[index], state))


def select(cache: Cache, rows: Tensor, crop: int) -> None:
    """Keep `rows` (indices) and forget the first `crop` tokens, padding in all of them."""
    for layer in _layers(cache):
        if crop and _attends(layer):
            _crop(layer, crop)
        _replace(layer, lambda tensor: tensor[rows.to(tensor.device)])


def _layers(cache: Cache) -> list[Any]:
    # Any: what a layer holds depends on its class, and models bring classes of their own.
    return cache.layers


def _copy(layer: Any) -> Any:
    """A layer that can be changed without changing the one it is made of."""
    copied = copy(layer)
    for name in ("conv_states", "recurrent_states"):
        if (states := getattr(layer, name, None)) is not None:
            setattr(copied, name, dict(states))
    return copied


def _crop(layer: Any, tokens: int) -> None:
    kept = layer.keys.shape[-2] - tokens
    if hasattr(layer, "cumulative_length"):
        # A sliding layer has dropped the padding by itself as far as its window has moved.
        layer.cumulative_length -= tokens
        kept = min(layer.keys.shape[-2], layer.cumulative_length)
    start = layer.keys.shape[-2] - kept
    layer.keys, layer.values = layer.keys[:, :, start:], layer.values[:, :, start:]


def _replace(layer: Any, change: Callable[[Tensor], Tensor]) -> None:
    if _attends(layer):
        layer.keys, layer.values = change(layer.keys), change(layer.values)
    for states in _states(layer):
        for index, state in states.items():
            if state is not None:
                states[index] = change(state)


def _attends(layer: Any) -> bool:
    keys = getattr(layer, "keys", None)
    return keys is not None and keys.numel() > 0


def _states(layer: Any) -> Iterator[dict[int, Any]]:
    for name in ("conv_states", "recurrent_states"):
        if (states := getattr(layer, name, None)) is not None:
            yield states


def _stack(upper: Tensor, lower: Tensor) -> Tensor:
    tokens = max(upper.shape[-2], lower.shape[-2])
    return torch.cat([_pad(upper, tokens), _pad(lower, tokens)])


def _pad(tensor: Tensor, tokens: int) -> Tensor:
    missing = tokens - tensor.shape[-2]
    return torch.nn.functional.pad(tensor, (0, 0, missing, 0)) if missing else tensor
