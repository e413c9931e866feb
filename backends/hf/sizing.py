"""The size of a model's KV cache: as the options say, within the available memory."""

from dataclasses import dataclass

import torch

from backends.checkpoint.folder import Checkpoint
from backends.hf.options import HFOptions
from backends.hf.packed.pages import usable_tokens
from backends.hf.placement import free_memory

# Of the memory that is free once the weights are loaded; the rest is for activations and others.
_SHARE = 0.5
_SHARE_OF_GPU = 0.8
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Sizes:
    """`slots` sequences of at most `capacity` tokens each, `tokens` in all of them together.

    `pages` are to be allocated for them, 0 if memory is not divided into pages.
    """

    slots: int
    capacity: int
    tokens: int
    pages: int = 0


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
    wanted = _wanted(checkpoint, options, slots, context_length)
    fits = _fits(device, bytes_per_token)
    if fits is None:
        fits = wanted
    if fits < context_length or (options.cache_tokens and fits < wanted):
        asked = f"{max(context_length, options.cache_tokens or 0)} tokens"
        free = (free_memory(device) or 0) / _GIB
        raise checkpoint.unavailable(
            f"a KV cache of {asked} needs more memory than is free on {device} "
            f"({free:.1f} GiB); set a smaller context_length or cache_tokens"
        )
    tokens = min(wanted, fits)
    if not lazy:
        slots = max(1, min(slots, tokens // context_length))
    return Sizes(slots, context_length, min(tokens, slots * context_length))


def paged_sizes(
    checkpoint: Checkpoint,
    options: HFOptions,
    *,
    context_length: int,
    bytes_per_token: int,
    device: torch.device,
    page_size: int,
) -> Sizes | None:
    """Sizes of a paged KV cache; None if it does not fit in memory.

    Slots cost next to nothing, so there are some to spare, which remember prompts. But each may
    waste two pages: where memory is short, at most a quarter of it.
    """
    slots = 2 * options.max_batch_size
    wanted = _wanted(checkpoint, options, slots, context_length)
    needed = -(-(wanted if options.cache_tokens else context_length) // page_size)
    fits = _fits(device, bytes_per_token)
    pages = -(-wanted // page_size) + 2 * slots
    if fits is not None and fits // page_size < pages:
        pages = fits // page_size
        slots = min(slots, max(1, pages // 8), (pages - needed) // 2)
    if slots < 1:
        return None
    return Sizes(slots, context_length, usable_tokens(slots, pages, page_size), pages)


def _wanted(checkpoint: Checkpoint, options: HFOptions, slots: int, context_length: int) -> int:
    """How many tokens there should be."""
    wanted = options.cache_tokens or slots * context_length
    if wanted < context_length:
        raise checkpoint.unavailable(
            f"cache_tokens {wanted} is less than the context length of {context_length}; raise it, "
            "or set a smaller context_length"
        )
    return wanted


def _fits(device: torch.device, bytes_per_token: int) -> int | None:
    """How many tokens fit, None if unknown."""
    free = free_memory(device)
    if free is None:
        return None
    share = _SHARE_OF_GPU if device.type == "cuda" else _SHARE
    return int(free * share) // max(bytes_per_token, 1)
