"""Media in the batch: ids for the prefix cache, and where chunks of prompts may end."""

import hashlib
from collections.abc import Callable, Sequence

from enginebay.contract.media import Media, MediaSpan
from enginebay.contract.types import GenerationRequest
from enginebay.engine.batching.runner import RunnerMemory


def cache_ids(request: GenerationRequest) -> list[int]:
    """The prompt as the prefix cache compares it.

    A placeholder means what it stands for, so that it gets an id made of the item: negative, which
    no token is, the same for the same part of the same item, and another for any other.
    """
    ids = list(request.prompt_token_ids)
    for span in request.media:
        ids[span.start : span.end] = [_mark(span)] * span.tokens
    return ids


def _mark(span: MediaSpan) -> int:
    name = f"{span.media.key} {span.first} {span.tokens}".encode()
    return -1 - int.from_bytes(hashlib.sha256(name).digest()[:7], "big")


def reusable(spans: Sequence[MediaSpan], tokens: int) -> int:
    """At most how many of a prompt's first `tokens` may be reused: no half of a span."""
    return next((span.start for span in spans if span.start < tokens < span.end), tokens)


def ends_before(
    spans: Sequence[MediaSpan],
    start: int,
    end: int,
    most: int,
    memory: RunnerMemory,
    take: Callable[[Media], bool],
) -> int:
    """Where a chunk from `start` really ends that was to end at `end`.

    It stops before an item that may not be encoded now, and at the borders that `memory` demands; a
    span that must be whole may make it longer, to end at `most`. `take` says of an item whether it
    may be encoded, and is asked only for those that the chunk will have if so.
    """
    for span in spans:
        if span.end <= start or span.start >= end:
            continue
        whole = memory.media_spans == "whole" and span.end > end
        if span.start > start and (whole or memory.media_apart):
            return span.start
        if (whole and span.end > most) or not take(span.media):
            return max(start, span.start)
        if whole:
            return span.end
        if memory.media_apart:
            return min(end, span.end)
    return end
