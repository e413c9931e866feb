"""A GGUF model behind the interface of the shared scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.batching.runner import Chunk, Mask, Memory, MemoryFullError, Runner, Sampled
from backends.llamacpp.adapters import Adapters
from backends.llamacpp.context import Context, NoRoomError, Rows
from backends.llamacpp.memory import CacheSize
from backends.llamacpp.model import Model
from backends.llamacpp.samplers import NativeSampler
from backends.llamacpp.tokenizer import Tokenizer
from backends.llamacpp.vocabulary import Vocabulary
from backends.sampling.logprobs import Logprobs
from enginebay import GenerationRequest, TokenLogprob


@dataclass(frozen=True, slots=True)
class LlamaLogits:
    """Rows in the order they were computed in, and where each wanted one is among them."""

    rows: Rows
    order: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class LlamaSampler:
    """Sampling state of one choice; `top` likeliest tokens come with each logprob, None: none."""

    native: NativeSampler
    top: int | None


class LlamaRunner(Runner[LlamaLogits, LlamaSampler]):
    """Runs chunks of many sequences in one `llama_decode`, on the thread that made it."""

    def __init__(
        self,
        model: Model,
        context: Context,
        tokenizer: Tokenizer,
        size: CacheSize,
        adapters: Adapters,
        *,
        keeps_all: bool,
    ) -> None:
        """`keeps_all`: sliding-window layers, if any, remember what has left their window."""
        self._context = context
        self._vocabulary = Vocabulary(model.vocab, context.tokens_per_sequence)
        self._tokenizer = tokenizer
        self._unified = size.unified
        self._adapters = adapters
        cuts = keeps_all and context.can_cut()
        self._held = [0] * size.slots
        self.memory = Memory(
            slots=size.slots,
            tokens=context.tokens,
            cuts=cuts,
            shares=size.unified,
            one_adapter=True,
            neighbours=not size.unified,
        )

    def run(self, chunks: Sequence[Chunk]) -> LlamaLogits:
        if any(chunk.start != self._held[chunk.slot] for chunk in chunks):
            raise ValueError("a chunk does not go on where its slot ends")
        self._set_adapter({chunk.adapter for chunk in chunks})
        # Caches of their own are computed together only for ascending slots without gaps.
        order = range(len(chunks))
        placed = order if self._unified else sorted(order, key=lambda i: chunks[i].slot)
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[bool] = []
        for chunk in (chunks[i] for i in placed):
            count = len(chunk.token_ids)
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + count)
            slots += [chunk.slot] * count
            outputs += [False] * (count - chunk.logits) + [True] * chunk.logits
        try:
            rows = self._context.run(token_ids, positions, slots, outputs)
        except NoRoomError as error:
            self._take_back(chunks)
            raise MemoryFullError("the KV cache is full") from error
        for chunk in chunks:
            self._held[chunk.slot] += len(chunk.token_ids)
        return LlamaLogits(rows, _row_order(chunks, placed))

    def sampler(self, request: GenerationRequest, index: int) -> LlamaSampler:
        native = NativeSampler(
            self._vocabulary,
            request.sampling,
            request.prompt_token_ids,
            index,
            self._tokenizer.eos_token_ids,
        )
        return LlamaSampler(native, request.sampling.logprobs)

    def sample(
        self,
        logits: LlamaLogits,
        rows: Sequence[int],
        samplers: Sequence[LlamaSampler],
        masks: Sequence[Mask | None],
    ) -> list[Sampled]:
        places = [logits.order[row] for row in rows]
        logprobs = [
            None if sampler.top is None else Logprobs(logits.rows[place], sampler.top)
            for place, sampler in zip(places, samplers, strict=True)
        ]
        tokens = _greedy(logits.rows, places, samplers, masks)
        for i, (place, sampler, mask) in enumerate(zip(places, samplers, masks, strict=True)):
            if i not in tokens:
                tokens[i] = sampler.native.sample(logits.rows[place], mask)
        return [
            Sampled(tokens[i], entry.of(tokens[i], self._tokenizer.text) if entry else None)
            for i, entry in enumerate(logprobs)
        ]

    def force(self, logits: LlamaLogits, row: int, sampler: LlamaSampler, token_id: int) -> Sampled:
        entry = None
        if sampler.top is not None:
            logprobs = Logprobs(logits.rows[logits.order[row]], sampler.top)
            entry = logprobs.of(token_id, self._tokenizer.text)
        sampler.native.accept(token_id)
        return Sampled(token_id, entry)

    def accept(self, sampler: LlamaSampler, token_id: int) -> None:
        sampler.native.accept(token_id)

    def logprobs(
        self, logits: LlamaLogits, rows: Sequence[int], token_ids: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        return [
            Logprobs(logits.rows[logits.order[row]], top).of(token_id, self._tokenizer.text)
            for row, token_id in zip(rows, token_ids, strict=True)
        ]

    def copy(self, source: int, target: int, tokens: int) -> None:
        if self._unified and self.memory.cuts:
            self._context.copy(source, target, tokens)
        else:
            self._context.copy(source, target)
            if tokens < self._held[source]:
                self._remove(target, tokens)
        self._held[target] = tokens

    def cut(self, slot: int, tokens: int) -> None:
        self._remove(slot, tokens)
        self._held[slot] = tokens

    def clear(self) -> None:
        self._context.clear()
        self._held = [0] * len(self._held)

    def release(self, sampler: LlamaSampler) -> None:
        sampler.native.close()

    def close(self) -> None:
        self._context.close()

    def _remove(self, slot: int, start: int) -> None:
        if not self._context.remove(slot, start):
            raise RuntimeError(f"the model cannot forget a sequence from token {start} on")

    def _take_back(self, chunks: Sequence[Chunk]) -> None:
        """A run that did not fit may have run its first tokens."""
        for chunk in chunks:
            self._remove(chunk.slot, chunk.start)

    def _set_adapter(self, names: set[str | None]) -> None:
        if len(names) > 1:
            raise ValueError("llama.cpp runs one adapter at a time")
        self._adapters.apply(names.pop(), self._context)


def _greedy(
    rows: Rows,
    places: Sequence[int],
    samplers: Sequence[LlamaSampler],
    masks: Sequence[Mask | None],
) -> dict[int, int]:
    """The likeliest token of all who want nothing else, by their index in `samplers`."""
    greedy = [
        i
        for i, (sampler, mask) in enumerate(zip(samplers, masks, strict=True))
        if mask is None and sampler.native.is_plain_greedy
    ]
    wanted = [places[i] for i in greedy]
    if len(set(wanted)) == len(rows):
        best = rows.argmax(axis=1)[wanted]
    else:
        best = np.array([rows[place].argmax() for place in wanted], np.intp)
    if np.isnan(rows[wanted, best]).any():  # argmax finds NaN first
        raise FloatingPointError("the logits are not numbers")
    return dict(zip(greedy, best.tolist(), strict=True))


def _row_order(chunks: Sequence[Chunk], placed: Sequence[int]) -> Sequence[int]:
    """Where each chunk's rows are, chunk by chunk, if they were computed as `placed`."""
    if isinstance(placed, range):
        return range(sum(chunk.logits for chunk in chunks))
    starts = [0] * len(chunks)
    row = 0
    for i in placed:
        starts[i] = row
        row += chunks[i].logits
    return [
        start + k for start, chunk in zip(starts, chunks, strict=True) for k in range(chunk.logits)
    ]
