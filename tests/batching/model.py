"""A model whose next token depends on every token before it, and a memory that keeps count.

Whatever the scheduler gets wrong (a token run twice, left out, in the wrong slot, a copy or cut
too short) changes the answer or trips an assertion.
"""

import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from string import ascii_letters

import numpy as np

from enginebay import (
    Detokenizer,
    GenerationRequest,
    GrammarCompiler,
    KvStore,
    Media,
    MediaSpan,
    ModelInfo,
    ReasoningBudget,
    SamplingParams,
    TokenLogprob,
    Vocabulary,
    allowed_tokens,
)
from enginebay.engine.batching.engine import BatchingEngine
from enginebay.engine.batching.runner import Chunk, Mask, Runner, RunnerMemory, Sampled
from enginebay.engine.batching.step import BatchLimits

VOCAB_SIZE = 50
EOS = 1


def next_token(token_ids: Sequence[int], index: int = 0, mask: Mask | None = None) -> int:
    """What the model says after these tokens; `index` stands for chance.

    Of a mask that allows nothing it makes nothing, and says 0.
    """
    number = zlib.crc32(repr((list(token_ids), index)).encode())
    if mask is None:
        return 2 + number % (VOCAB_SIZE - 2)
    allowed = np.flatnonzero(allowed_tokens(mask, VOCAB_SIZE)).tolist()
    return allowed[number % len(allowed)] if allowed else 0


def surprise(token_ids: Sequence[int], token_id: int) -> float:
    """What stands for a token's logprob behind these tokens."""
    return -1.0 - zlib.crc32(repr((list(token_ids), token_id)).encode()) / 2**32


CLOSE = (40, 41, 42)
"""What ends thought when the budget is used up."""


def budget(tokens: int) -> ReasoningBudget:
    """For thought that begins with the completion, and that nothing else ends."""
    return ReasoningBudget(
        tokens=tokens, start="no start", end="no end", close_token_ids=CLOSE, starts_inside=True
    )


def picture(content: str) -> Media:
    return Media(kind="image", data=content.encode(), type="image/png")


def meanings(request: GenerationRequest) -> list[int]:
    """The prompt as the model sees it: numbers that no token has for placeholders."""
    token_ids = list(request.prompt_token_ids)
    for span in request.media:
        for offset in range(span.tokens):
            name = f"{span.media.key} {span.first + offset}"
            token_ids[span.start + offset] = VOCAB_SIZE + zlib.crc32(name.encode())
    return token_ids


def expected(request: GenerationRequest, index: int = 0) -> list[int]:
    """The model's own tokens, and at the end of a budget those that are forced."""
    token_ids = meanings(request)
    count = min(request.sampling.max_tokens or 10**9, CONTEXT - len(token_ids))
    limit = request.sampling.reasoning_budget
    for said in range(count):
        token_id = next_token(token_ids, index if request.sampling.temperature else 0)
        if limit and 0 <= said - limit.tokens < len(CLOSE):
            token_id = CLOSE[said - limit.tokens]
        token_ids.append(token_id)
    return token_ids[len(request.prompt_token_ids) :]


CONTEXT = 64


@dataclass
class Dice:
    """The sampler of one choice."""

    index: int
    poison: bool
    released: bool = False


class PoisonedError(Exception):
    pass


@dataclass
class HashRunner(Runner[list[list[int]], Dice]):
    memory: RunnerMemory
    poison_tokens: frozenset[int] = frozenset()
    largest_batch: int = 10**9
    runs: list[list[Chunk]] = field(default_factory=list)
    samplers: list[Dice] = field(default_factory=list)
    dead: bool = False
    rows: list[str] = field(default_factory=list)
    encodings: int = 0
    refuses: bool = False
    state_layout: str | None = "cells"

    def __post_init__(self) -> None:
        self.slots: list[list[object]] = [[] for _ in range(self.memory.slots)]

    @property
    def held(self) -> int:
        if self.memory.shares:
            return len({id(cell) for slot in self.slots for cell in slot})
        return sum(len(slot) for slot in self.slots)

    @property
    def forward_tokens(self) -> int:
        return sum(len(chunk.token_ids) for run in self.runs for chunk in run)

    def run(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        if self.dead or len(chunks) > self.largest_batch:
            raise PoisonedError("too many")
        assert chunks
        assert len({chunk.slot for chunk in chunks}) == len(chunks)
        if self.memory.one_adapter:
            assert len({chunk.adapter for chunk in chunks}) == 1
        logits = []
        self._encode(chunks)
        for chunk in chunks:
            slot = self.slots[chunk.slot]
            seen = self._see(chunk)
            assert chunk.start == len(slot), "the slot holds something else"
            assert chunk.token_ids
            assert self.memory.chunks or not chunk.start or len(chunk.token_ids) == 1
            slot.extend(_Cell(token, chunk.adapter) for token in seen)
            if self.poison_tokens & set(chunk.token_ids):
                raise PoisonedError("the model cannot take this")
            held = [cell.token for cell in slot]
            for wanted in range(chunk.logits):
                logits.append(held[: len(held) - chunk.logits + wanted + 1])
            assert all(cell.adapter == chunk.adapter for cell in slot), "another adapter's memory"
        assert self.held <= self.memory.tokens, "the memory overflows"
        self.runs.append(list(chunks))
        return logits

    def encoded(self, media: Media) -> bool:
        return media.key in self.rows

    def _encode(self, chunks: Sequence[Chunk]) -> None:
        """Of the items of the last step two are kept."""
        needed = {
            chunk.slot: {span.media.key for span in _within(chunk, chunk.request)}
            for chunk in chunks
            if chunk.request
        }
        missing = {slot: keys - {*self.rows} for slot, keys in needed.items() if keys}
        new = set().union(*missing.values())
        if any(len(chunk.token_ids) == 1 for chunk in chunks):
            whole = not self.memory.chunks or self.memory.media_spans == "prompt"
            most = max(map(len, missing.values()), default=0) if whole else 1
            assert len(new) <= most, "a choice that decodes waits for several items"
        self.encodings += len(new)
        self.rows = [*self.rows, *sorted(new)][-2:]

    def _see(self, chunk: Chunk) -> list[int]:
        """What the chunk's tokens mean; its borders are as the memory wants them."""
        if chunk.request is None:
            return list(chunk.token_ids)
        start, end = chunk.start, chunk.start + len(chunk.token_ids)
        whole = meanings(chunk.request)
        spans = _within(chunk, chunk.request)
        if self.memory.media_apart and spans:
            assert len(spans) == 1
            assert spans[0].start <= start
            assert end <= spans[0].end
        if self.memory.media_spans == "whole":
            assert all(start <= span.start and span.end <= end for span in spans)
        if self.memory.media_spans == "prompt" and start < len(whole):
            assert not start
            assert end >= len(whole)
        return [*whole[start:end], *chunk.token_ids[max(0, len(whole) - start) :]]

    def sampler(self, request: GenerationRequest, index: int) -> Dice:
        dice = Dice(index if request.sampling.temperature else 0, request.sampling.top_k == 13)
        self.samplers.append(dice)
        return dice

    def sample(
        self,
        logits: list[list[int]],
        rows: Sequence[int],
        samplers: Sequence[Dice],
        masks: Sequence[Mask | None],
    ) -> list[Sampled]:
        assert len(masks) == len(rows) == len(samplers)
        assert len({id(sampler) for sampler in samplers}) == len(samplers)
        assert not any(sampler.released for sampler in samplers)
        if any(sampler.poison for sampler in samplers):
            raise PoisonedError("the sampler cannot take this")
        return [
            Sampled(next_token(logits[row], dice.index, mask))
            for row, dice, mask in zip(rows, samplers, masks, strict=True)
        ]

    def logprobs(
        self, logits: list[list[int]], rows: Sequence[int], token_ids: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        return [
            TokenLogprob(token_id, str(token_id), surprise(logits[row], token_id))
            for row, token_id in zip(rows, token_ids, strict=True)
        ]

    def force(self, logits: list[list[int]], row: int, sampler: Dice, token_id: int) -> Sampled:
        assert not sampler.released
        assert logits[row]
        return Sampled(token_id)

    def accept(self, sampler: Dice, token_id: int) -> None:
        assert not sampler.released

    def copy(self, source: int, target: int, tokens: int) -> None:
        assert not self.slots[target], "the target is not empty"
        assert self.memory.cuts or tokens == len(self.slots[source]), "a part is copied"
        cells = self.slots[source][:tokens]
        fresh = [_Cell(c.token, c.adapter) for c in cells]
        self.slots[target] = cells if self.memory.shares else fresh
        assert self.held <= self.memory.tokens, "the memory overflows"

    def cut(self, slot: int, tokens: int) -> None:
        assert self.memory.cuts or not tokens, "a part is cut off"
        assert tokens <= len(self.slots[slot])
        self.slots[slot] = self.slots[slot][:tokens]

    def fingerprint(self, adapter: str) -> str | None:
        return f"weights of {adapter}"

    def save(self, slot: int, tokens: int) -> memoryview:
        assert len(self.slots[slot]) == tokens
        return memoryview(pickle.dumps([(c.token, c.adapter) for c in self.slots[slot]]))

    def restore(self, slot: int, state: memoryview, held: int, tokens: int) -> None:
        cells = [_Cell(*fields) for fields in pickle.loads(state)]
        assert not self.slots[slot], "the slot is not empty"
        assert len(cells) == held
        assert self.memory.cuts or tokens == held, "a part is restored"
        if self.refuses:
            self.slots[slot] = cells[: tokens // 2]  # what was written before it failed
            raise ValueError("not a state of this model")
        self.slots[slot] = cells[:tokens]
        assert self.held <= self.memory.tokens, "the memory overflows"

    def clear(self) -> None:
        self.slots = [[] for _ in self.slots]

    def release(self, sampler: Dice) -> None:
        sampler.released = True


def _within(chunk: Chunk, request: GenerationRequest) -> list[MediaSpan]:
    start, end = chunk.start, chunk.start + len(chunk.token_ids)
    return [span for span in request.media if span.start < end and span.end > start]


@dataclass(eq=False, slots=True)
class _Cell:
    token: int
    adapter: str | None


class Numbers:
    """Tokens are written as their numbers."""

    special_token_ids = frozenset({EOS})

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(word) for word in text.split()]

    encode_plain = encode

    def decode(self, token_ids: Sequence[int]) -> str:
        return decode(token_ids)


HashEngine = BatchingEngine[list[list[int]], Dice]


def decode(token_ids: Sequence[int]) -> str:
    return "".join(f"{token} " for token in token_ids)


def letters(token_ids: Iterable[int]) -> str:
    """Text of another vocabulary, in which every token is a letter."""
    return "".join(ascii_letters[token_id - 2] for token_id in token_ids if token_id >= 2)


def make_compiler() -> GrammarCompiler:
    """For `letters`."""
    vocabulary = Vocabulary(
        tokens=[
            b"",
            b"<end>",
            *(letters([token_id]).encode() for token_id in range(2, VOCAB_SIZE)),
        ],
        special_token_ids=frozenset({EOS}),
        end_token_ids=frozenset({EOS}),
        encode=lambda text: [ascii_letters.index(letter) + 2 for letter in text],
    )
    return GrammarCompiler(vocabulary, threads=1)


def make_engine(
    memory: RunnerMemory | None = None,
    *,
    poison_tokens: frozenset[int] = frozenset(),
    largest_batch: int = 10**9,
    drafter: object = None,
    compiler: GrammarCompiler | None = None,
    kv_store: KvStore | None = None,
    clock: Callable[[], float] | None = None,
    context_length: int = CONTEXT,
    **limits: float | None,
) -> HashEngine:
    """By the default `clock` every step takes as long, so that drafts pay where any are right."""
    memory = memory or RunnerMemory(slots=8, tokens=8 * CONTEXT)
    runner = HashRunner(memory, poison_tokens, largest_batch)
    info = ModelInfo(
        context_length=context_length, vocab_size=VOCAB_SIZE, adapters=("tuned", "other")
    )
    sizes = {"max_batch_size": 4, "batch_tokens": 16, "prefill_tokens": 8, **limits}
    return HashEngine(
        runner,
        Numbers(),
        info,
        BatchLimits(**sizes),
        eos_token_ids=frozenset({EOS}),
        new_detokenizer=lambda: Detokenizer(letters if compiler else decode),
        drafter=drafter,
        compiler=compiler,
        kv_store=kv_store,
        clock=clock or map(float, count()).__next__,
    )


def request(prompt: Sequence[int], id: str = "r", **fields: object) -> GenerationRequest:
    names = ("n", "adapter", "priority", "cache_salt", "media")
    own = {name: fields.pop(name) for name in names if name in fields}
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 6, **fields})
    return GenerationRequest(
        request_id=id, prompt_token_ids=tuple(prompt), sampling=sampling, **own
    )
