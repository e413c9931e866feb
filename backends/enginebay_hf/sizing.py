"""The size of a model's KV cache: as the options say, within the available memory."""

from dataclasses import dataclass
from typing import Any

from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.options import HFOptions

# Of the memory that is free once the weights are loaded; the rest is for activations and others.
_SHARE = 0.5
_SHARE_OF_GPU = 0.8
_GIB = 1024**3

_DRAFTED_AT_LENGTH = 4  # sequences that the draft model's cache holds at their full length

_SHARED_WITH_DRAFT = {
    "device",
    "dtype",
    "max_batch_size",
    "batch_tokens",
    "prepack",
    "threads",
    "trust_remote_code",
}

_CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")
_CONTEXT_OF_UNLIMITED = 4096


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
    device: str,
    free: int | None,
    lazy: bool,
) -> Sizes:
    """Sizes of the key-value memory; `free` bytes are on the device, None if unknown.

    `lazy` memory is taken as tokens come, so there are slots to spare, which remember the prompts
    of others than those that run; the rest is allocated at once, slot by slot.
    """
    slots = 2 * options.max_batch_size if lazy else options.max_batch_size
    wanted = _wanted(checkpoint, options, slots, context_length)
    fits = _fits(device, free, bytes_per_token)
    if fits is None:
        fits = wanted
    if fits < context_length or (options.cache_tokens and fits < wanted):
        asked = f"{max(context_length, options.cache_tokens or 0)} tokens"
        raise checkpoint.unavailable(
            f"a KV cache of {asked} needs more memory than is free on {device} "
            f"({(free or 0) / _GIB:.1f} GiB); set a smaller context_length or cache_tokens"
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
    device: str,
    free: int | None,
    page_size: int,
) -> Sizes | None:
    """Sizes of a paged KV cache; None if it does not fit in memory; `free` as above.

    Slots cost next to nothing, so there are some to spare, which remember prompts. But each may
    waste two pages: where memory is short, at most a quarter of it.
    """
    slots = 2 * options.max_batch_size
    wanted = _wanted(checkpoint, options, slots, context_length)
    needed = -(-(wanted if options.cache_tokens else context_length) // page_size)
    fits = _fits(device, free, bytes_per_token)
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


def usable_tokens(slots: int, pages: int, page_size: int) -> int:
    """How many tokens, shared ones counted once, always fit into `pages` (the spare one included).

    A slot's last page may hold a single token, and where a slot leaves the one it was copied from,
    a page holds some of the shared tokens again: at most two pages of each slot are lost.
    """
    return (pages - 2 * slots) * page_size


def draft_options(options: HFOptions, own_length: int, context_length: int) -> HFOptions:
    """Those of the draft model, given those and the contexts of the large one."""
    length = min(own_length, context_length)
    sequences = min(options.max_batch_size, _DRAFTED_AT_LENGTH)
    shared = options.model_dump(include=_SHARED_WITH_DRAFT)
    return HFOptions(**shared, context_length=length, cache_tokens=sequences * length)


def context_length(checkpoint: Checkpoint, options: HFOptions, text_config: Any) -> int:
    """The model's, or the shorter one set in the options.

    A model without positions (alibi, recurrent) has no limit: any length works, by default 4096.
    """
    lengths = (getattr(text_config, name, None) for name in _CONTEXT_NAMES)
    longest = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    wanted = options.context_length
    if longest is not None and wanted is not None and wanted > longest:
        raise checkpoint.unavailable(
            f"context_length {wanted} exceeds the {longest} tokens the model was trained for"
        )
    return wanted or longest or _CONTEXT_OF_UNLIMITED


def _fits(device: str, free: int | None, bytes_per_token: int) -> int | None:
    """How many tokens fit, None if unknown."""
    if free is None:
        return None
    share = _SHARE_OF_GPU if device.startswith("cuda") else _SHARE
    return int(free * share) // max(bytes_per_token, 1)
