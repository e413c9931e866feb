"""How many tokens a model may remember: what the options ask for, as far as memory goes."""

from dataclasses import dataclass

import torch

from backends.hf.checkpoint import Checkpoint
from backends.hf.options import HFOptions
from backends.hf.placement import free_memory

# Of the memory that is free once the weights are loaded; the rest is for activations and others.
_SHARE = 0.5
_SHARE_OF_GPU = 0.8
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Sizes:
    """`slots` sequences of at most `capacity` tokens each, `tokens` in all of them together."""

    slots: int
    capacity: int
    tokens: int


def memory_sizes(
    checkpoint: Checkpoint,
    options: HFOptions,
    *,
    context_length: int,
    bytes_per_token: int,
    device: torch.device,
    lazy: bool,
) -> Sizes:
    """Sizes of the key-value memory.

    `lazy` memory is taken as tokens come, so there are slots to spare, which remember the prompts
    of others than those that run; the rest is allocated at once, slot by slot.
    """
    slots = 2 * options.max_batch_size if lazy else options.max_batch_size
    wanted = options.cache_tokens or slots * context_length
    if wanted < context_length:
        raise checkpoint.unavailable(
            f"cache_tokens {wanted} is less than the context length of {context_length}; raise it, "
            "or set a smaller context_length"
        )
    free = free_memory(device)
    fits = wanted
    if free is not None:
        share = _SHARE_OF_GPU if device.type == "cuda" else _SHARE
        fits = int(free * share) // max(bytes_per_token, 1)
    if fits < context_length or (options.cache_tokens and fits < wanted):
        asked = f"{max(context_length, options.cache_tokens or 0)} tokens"
        raise checkpoint.unavailable(
            f"keys and values of {asked} need more memory than is free on {device} "
            f"({(free or 0) / _GIB:.1f} GiB); set a smaller context_length or cache_tokens"
        )
    tokens = min(wanted, fits)
    if not lazy:
        slots = max(1, min(slots, tokens // context_length))
    return Sizes(slots, context_length, min(tokens, slots * context_length))
