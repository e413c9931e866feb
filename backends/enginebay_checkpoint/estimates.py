"""What the estimates of the engines' memory have in common."""

from collections.abc import Iterator

from enginebay import BackendSettings, MemoryPart

_ENOUGH = 4096  # tokens: with more memory a longer context is not worth unloading others
_SHORTEST = 2048  # tokens: no shorter context is advised


def part_of(name: str, bytes: int, *, gpu: bool) -> MemoryPart:
    """A part that is whole in one kind of memory, on the GPU or in RAM."""
    return MemoryPart(name, gpu=bytes) if gpu else MemoryPart(name, ram=bytes)


def is_short(tokens: int, context_length: int) -> bool:
    """Whether a cache of so many tokens is worth unloading other models for a larger one."""
    return tokens < min(context_length, _ENOUGH)


def shorter_contexts(length: int, cache_tokens: int | None) -> Iterator[dict[str, int]]:
    """Options with less and less context than `length`, the mildest first, to save memory.

    A `cache_tokens` that is set shrinks with it.
    """
    shorter = 1 << max(0, length - 1).bit_length() - 1
    while shorter >= _SHORTEST:
        cache = {"cache_tokens": shorter} if cache_tokens else {}
        yield {"context_length": shorter, **cache}
        shorter //= 2


def saved_kv(settings: BackendSettings) -> list[MemoryPart]:
    """What saved sequences may take of RAM, where any are kept."""
    kept = settings.kv_store
    return [MemoryPart("saved_kv", ram=kept.ram)] if kept and kept.ram else []
