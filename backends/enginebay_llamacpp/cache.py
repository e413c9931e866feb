"""The size and layout of the KV cache, and the steps in which it grows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from enginebay import FreeMemory
from enginebay_llamacpp.files import unavailable
from enginebay_llamacpp.memory import Layout, context_length, padded
from enginebay_llamacpp.options import MAX_SEQUENCES, LlamaCppOptions
from enginebay_llamacpp.shape import ModelShape

TOKENS_A_SEQUENCE = 4096
"""Tokens that most chats need at most."""

_LEAST_TOKENS = 256
_FIRST_TOKENS = 4096

_LOOSE = 4
"""Separate caches may have this many cells for each token in use; a unified cache has fewer."""

_DRAFTED_AT_LENGTH = 4  # sequences that the draft model's cache holds at their full length


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Cells for `tokens` tokens of `slots` sequences, which share them all or have equal parts."""

    unified: bool
    slots: int
    tokens: int

    @classmethod
    def separate(cls, slots: int, length: int) -> "CacheSize":
        """One part of `length` tokens for each of `slots` sequences."""
        return cls(unified=False, slots=slots, tokens=slots * padded(length))

    @property
    def each(self) -> int:
        """Cells that one sequence may use."""
        return self.tokens if self.unified else self.tokens // self.slots

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether sequences of these lengths fit, of which none shares cells with another."""
        if self.unified:
            return sum(lengths) <= self.tokens
        return max(lengths) <= self.each


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What the cache may become: `tokens` of `slots` sequences of up to `context_length` tokens.

    `layout`: "unified" and "separate" caches are made at their full size. A cache that "grows" is
    small at first, and is unified or separate, as serves the lengths that sequences have then;
    "grows unified": it is always unified. `token_bytes` and `state_bytes`: of a token and of a
    sequence's recurrent state, wherever they lie. `wanted`: the context length that was asked for.
    `cause`: why there are so many tokens, and which option changes that.
    """

    layout: Literal["unified", "separate", "grows", "grows unified"]
    slots: int
    tokens: int
    context_length: int
    wanted: int
    cause: str
    token_bytes: float
    state_bytes: int

    @property
    def grows(self) -> bool:
        """Whether it is small at first."""
        return self.layout.startswith("grows")

    @property
    def shares(self) -> bool:
        """Whether copies of a sequence take no cells, however the cache is laid out."""
        return self.layout == "unified"

    @property
    def is_short(self) -> bool:
        """Whether contexts are shorter than was asked for, or than most chats need."""
        return self.context_length < min(self.wanted, TOKENS_A_SEQUENCE)

    def bytes(self, size: CacheSize) -> int:
        """What a cache of this size takes."""
        return int(size.tokens * self.token_bytes) + size.slots * self.state_bytes

    def first(self) -> CacheSize:
        """The size of an empty cache."""
        return self.size_for([0] * self.slots)

    def largest(self) -> CacheSize:
        """The largest size that it may have."""
        unified = self.layout != "separate"
        return CacheSize(unified=unified, slots=self.slots, tokens=self.tokens)

    def size_for(self, lengths: Sequence[int]) -> CacheSize:
        """The size that serves sequences of these lengths best.

        In a unified cache every sequence looks at the cells of all. So separate ones are faster for
        many sequences, and take more memory the more the lengths differ.
        """
        if not self.grows:
            return self.largest()
        total = sum(lengths)
        if self.layout == "grows":
            separate = CacheSize.separate(self.slots, _step(max(lengths)))
            if separate.tokens <= min(self.tokens, max(_FIRST_TOKENS, _LOOSE * total)):
                return separate
        tokens = min(self.tokens, max(_FIRST_TOKENS, _step(total)))
        return CacheSize(unified=True, slots=self.slots, tokens=tokens)

    def describe(self) -> str:
        """How much it holds, what that takes, and which option changes it."""
        long = max(1, self.tokens // self.context_length)
        many = "conversation" if long == 1 else "conversations"
        short = min(self.slots, self.tokens // TOKENS_A_SEQUENCE)
        holds = f"{long} {many} of {self.context_length:,} tokens at once"
        if self.layout != "separate" and short > long:
            holds += f", or {short} of {TOKENS_A_SEQUENCE:,}"
        size = f"KV cache of {self.tokens:,} tokens ({_mib(self.bytes(self.largest()))})"
        if self.grows and self.first() != self.largest():
            size += f", which starts with {_mib(self.bytes(self.first()))} and grows with use"
        return f"{holds}; {size}; {self.cause}"


def cache_plan(
    shape: ModelShape, options: LlamaCppOptions, layout: Layout, free: FreeMemory, *, gpu: bool
) -> CachePlan:
    """As the options say, and otherwise what serves well and fits into what is `free`.

    `free` is what is left beside the weights.
    """
    wanted = context_length(shape, options)
    rows = options.max_batch_size
    grows = options.kv_unified is None and not gpu and layout.ram_token > 0
    slots = rows
    if not layout.state_bytes and options.kv_unified is not False:
        slots = max(rows, 2) if grows else min(2 * rows, MAX_SEQUENCES)
    elif layout.state_bytes and "max_batch_size" not in options.model_fields_set:
        slots = max(1, min(slots, layout.affordable_sequences(free)))
    affordable = layout.affordable_tokens(free, slots)
    cause = "cache_tokens changes this"
    if options.kv_unified is False:
        length = min(wanted, (options.cache_tokens or slots * wanted) // slots)
        if not (options.context_length or options.cache_tokens):
            length = min(length, max(affordable // slots, _LEAST_TOKENS))
        tokens = slots * padded(length)
    else:
        good = min(rows * wanted, max(wanted, rows * TOKENS_A_SEQUENCE))
        most = max(affordable, options.context_length or _LEAST_TOKENS)
        tokens = options.cache_tokens or min(good, most)
        if not options.cache_tokens and most < good:
            cause = "free memory limits this, unless cache_tokens is set"
        length = min(wanted, tokens)
        tokens = padded(tokens)
    if options.context_length and length < options.context_length:
        raise unavailable(
            shape.path,
            f"cache_tokens {options.cache_tokens} for {slots} sequences leaves {length} tokens "
            f"each, less than context_length {options.context_length}; raise cache_tokens, lower "
            "max_batch_size or set kv_unified: true",
        )
    chosen: Literal["unified", "separate", "grows", "grows unified"] = "unified"
    if options.kv_unified is False:
        chosen = "separate"
    elif grows and shape.length_range(_LEAST_TOKENS) == shape.length_range(tokens):
        # Recurrent states and sliding windows cannot go from one layout to another, and layouts
        # differ in how they round.
        fixed = rows == 1 or layout.state_bytes or shape.slides or options.deterministic
        chosen = "grows unified" if fixed else "grows"
    return CachePlan(
        layout=chosen,
        slots=slots,
        tokens=tokens,
        context_length=length,
        wanted=wanted,
        cause=cause,
        token_bytes=layout.ram_token + layout.gpu_token,
        state_bytes=layout.state_bytes,
    )


def draft_size(
    shape: ModelShape, options: LlamaCppOptions, context_length: int
) -> tuple[CacheSize, int]:
    """That of the draft model, and its context length, given those of the large one.

    A sequence for each choice, of which all share the room of a few long ones.
    """
    slots = options.max_batch_size
    length = padded(min(context_length, shape.trained_context or context_length))
    tokens = min(slots, _DRAFTED_AT_LENGTH) * length
    return CacheSize(unified=True, slots=slots, tokens=tokens), length


def _step(tokens: int) -> int:
    """The next size that is a power of two."""
    return max(_LEAST_TOKENS, 1 << max(0, tokens - 1).bit_length())


def _mib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
