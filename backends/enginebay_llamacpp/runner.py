"""Runs a GGUF model for the shared scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from enginebay import (
    Chunk,
    Media,
    MediaSpan,
    MemoryFullError,
    NumpyRunner,
    Rows,
    RunnerMemory,
)
from enginebay_llamacpp.adapters import Adapters
from enginebay_llamacpp.context import Context, NoRoomError
from enginebay_llamacpp.growing import GrowingCache
from enginebay_llamacpp.media import EncodedTile, MediaStore
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.positions import Positions
from enginebay_llamacpp.tokenizer import Tokenizer

_TILE = 64
"""GGML_FA_TILE_Q: rows of queries that flash attention computes at once on a CPU."""


@dataclass(frozen=True, slots=True)
class _TileChunk:
    """A chunk within a span: some of the rows of its tile."""

    index: int
    chunk: Chunk
    span: MediaSpan
    encoded: EncodedTile


class LlamaRunner(NumpyRunner):
    """Runs chunks of many sequences on the thread that made it.

    All text of a step is one `llama_decode`, and so are all its rows, which cannot be in one with
    tokens; a tile whose tokens see each other needs one of its own.
    """

    def __init__(
        self,
        model: Model,
        cache: GrowingCache,
        tokenizer: Tokenizer,
        adapters: Adapters,
        media: MediaStore | None = None,
        *,
        keeps_all: bool,
    ) -> None:
        """`keeps_all`: sliding-window layers, if any, keep tokens that have left their window.

        `media`: None for a model that takes text only.
        """
        super().__init__(model.vocab_size, tokenizer.eos_token_ids, tokenizer.pieces.__getitem__)
        self._cache = cache
        plan = cache.plan
        self._adapters = adapters
        self._media = media
        cuts = keeps_all and self._context.can_cut()
        # As llama.cpp lays it out, but a cache that grows takes all layouts.
        streams = {"grows": "any", "separate": plan.slots}.get(plan.layout, 1)
        self.state_layout = f"llama.cpp, {streams} streams, shape at the end"
        self._held = [0] * plan.slots
        self._positions = [Positions() for _ in self._held]
        self.memory = RunnerMemory(
            slots=plan.slots,
            tokens=plan.tokens,
            cuts=cuts,
            shares=plan.shares,
            one_adapter=True,
            neighbours=not plan.shares,
            even=not plan.shares,
            tile=_TILE,
            media_spans="cut" if media is None or media.causal else "whole",
            media_apart=True,
        )

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        if any(chunk.start != self._held[chunk.slot] for chunk in chunks):
            raise ValueError("a chunk does not continue where its slot ends")
        self._make_room(chunks)
        self._set_adapter({chunk.adapter for chunk in chunks})
        # Caches of their own are computed together only for ascending slots without gaps.
        order = range(len(chunks))
        unified = self._context.size.unified
        placed = order if unified else sorted(order, key=lambda i: chunks[i].slot)
        tiles = self._tiles(chunks, placed)
        groups = _groups(tiles)
        pictured = [tile.index for group in groups for tile in group]
        text = [i for i in placed if i not in pictured]
        try:
            done = [self._run_tiles(group) for group in groups]
            if text:
                done.append(self._run_text([chunks[i] for i in text]))
        except NoRoomError as error:
            self._take_back(chunks, tiles)
            raise MemoryFullError("the KV cache is full") from error
        for chunk in chunks:
            self._held[chunk.slot] += len(chunk.token_ids)
        rows = done[0] if len(done) == 1 else np.concatenate(done)
        return _in_order(rows, chunks, [*pictured, *text])

    def encoded(self, media: Media) -> bool:
        return self._media is not None and self._media.encoded(media)

    def ready(self, media: Media) -> bool:
        return self._media is None or self._media.ready(media)

    def wait(self) -> None:
        if self._media:
            self._media.wait()

    def copy(self, source: int, target: int, tokens: int) -> None:
        held = self._positions[source]
        self._positions[target] = held.copy(tokens)
        part = tokens < self._held[source]
        if part and self._context.size.unified and self.memory.cuts:
            self._context.copy(source, target, held.of(tokens))
        else:
            self._context.copy(source, target)
            if part:
                self._remove(target, held.of(tokens))
        self._held[target] = tokens

    def cut(self, slot: int, tokens: int) -> None:
        self._remove(slot, self._positions[slot].of(tokens))
        self._positions[slot] = self._positions[slot].copy(tokens)
        self._held[slot] = tokens

    def fingerprint(self, adapter: str) -> str | None:
        return self._adapters.fingerprint(adapter)

    def save(self, slot: int, tokens: int) -> memoryview:
        return self._context.save(slot)

    def restore(self, slot: int, state: memoryview, held: int, tokens: int) -> None:
        lengths = [*self._held]
        lengths[slot] = held
        self._cache.make_room(lengths, self._held)
        self._context.restore(slot, state)
        self._held[slot] = held
        if tokens < held:
            self.cut(slot, tokens)

    def clear(self) -> None:
        self._context.clear()
        self._held = [0] * len(self._held)
        self._positions = [Positions() for _ in self._held]

    def close(self) -> None:
        self._cache.close()

    @property
    def _context(self) -> Context:
        return self._cache.context

    def _make_room(self, chunks: Sequence[Chunk]) -> None:
        """Let the cache grow, at once for the whole of a prompt."""
        lengths, expected = [*self._held], [*self._held]
        for chunk in chunks:
            length = chunk.start + len(chunk.token_ids)
            prompt = len(chunk.request.prompt_token_ids) + 1 if chunk.request else 0
            lengths[chunk.slot], expected[chunk.slot] = length, max(length, prompt)
        try:
            self._cache.make_room(lengths, self._held, expected)
        except NoRoomError as error:
            raise MemoryFullError("there is not enough memory for a larger KV cache") from error

    def _tiles(self, chunks: Sequence[Chunk], placed: Sequence[int]) -> list[_TileChunk]:
        """The chunks that stand for tiles, encoded."""
        found = []
        for index in placed:
            chunk = chunks[index]
            if span := _span(chunk):
                if self._media is None:
                    raise ValueError("this model takes text only")
                encoded = self._media.encode(span)
                self._positions[chunk.slot].add(span.start, encoded.tile)
                found.append(_TileChunk(index, chunk, span, encoded))
        return found

    def _run_tiles(self, group: Sequence[_TileChunk]) -> NDArray[np.float32]:
        rows, positions = [], []
        slots: list[int] = []
        outputs: list[bool] = []
        for tile in group:
            start = tile.chunk.start - tile.span.start
            count = len(tile.chunk.token_ids)
            rows.append(tile.encoded.rows[start : start + count])
            positions.append(self._places(tile)[:, start : start + count])
            slots += [tile.chunk.slot] * count
            outputs += _outputs(tile.chunk)
        return self._context.run_rows(
            np.concatenate(rows),
            np.concatenate(positions, axis=1),
            slots,
            outputs,
            causal=group[0].encoded.tile.causal,
        )

    def _places(self, tile: _TileChunk) -> NDArray[np.int32]:
        """The positions of all tokens of a tile, `[sections, tokens]`."""
        assert self._media is not None
        start = self._positions[tile.chunk.slot].of(tile.span.start)
        return self._media.projector.positions(tile.encoded.tile, start)

    def _run_text(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[bool] = []
        for chunk in chunks:
            count = len(chunk.token_ids)
            start = self._positions[chunk.slot].of(chunk.start)
            token_ids += chunk.token_ids
            positions += range(start, start + count)
            slots += [chunk.slot] * count
            outputs += _outputs(chunk)
        return self._context.run(token_ids, positions, slots, outputs)

    def _remove(self, slot: int, position: int) -> None:
        if not self._context.remove(slot, position):
            raise RuntimeError(
                f"the model cannot remove the tokens of a sequence from {position} on"
            )

    def _take_back(self, chunks: Sequence[Chunk], tiles: Sequence[_TileChunk]) -> None:
        """A run that did not fit may have run some of its tokens."""
        for chunk in chunks:
            held = self._positions[chunk.slot]
            self._remove(chunk.slot, held.of(chunk.start))
            self._positions[chunk.slot] = held.copy(chunk.start)
        for tile in tiles:
            begun = tile.chunk.start - tile.span.start
            if begun and tile.encoded.tile.shares_position:  # then all of the tile was removed
                again = Chunk(tile.chunk.slot, tile.span.start, [0] * begun)
                self._run_tiles([replace(tile, chunk=again)])

    def _set_adapter(self, names: set[str | None]) -> None:
        if len(names) > 1:
            raise ValueError("llama.cpp runs one adapter at a time")
        self._adapters.apply(names.pop(), self._cache)


def _span(chunk: Chunk) -> MediaSpan | None:
    """The span in which a chunk begins, and then also ends."""
    spans = chunk.request.media if chunk.request else ()
    return next((span for span in spans if span.start <= chunk.start < span.end), None)


def _groups(tiles: Sequence[_TileChunk]) -> list[list[_TileChunk]]:
    """What can be run together."""
    causal = [tile for tile in tiles if tile.encoded.tile.causal]
    alone = [[tile] for tile in tiles if not tile.encoded.tile.causal]
    return [causal, *alone] if causal else alone


def _outputs(chunk: Chunk) -> list[bool]:
    return [False] * (len(chunk.token_ids) - chunk.logits) + [True] * chunk.logits


def _in_order(rows: NDArray[np.float32], chunks: Sequence[Chunk], placed: Sequence[int]) -> Rows:
    """The rows chunk by chunk, if they were computed as `placed`."""
    if list(placed) == list(range(len(chunks))):
        return rows
    starts = [0] * len(chunks)
    row = 0
    for i in placed:
        starts[i] = row
        row += chunks[i].logits
    return [
        rows[start + k]
        for start, chunk in zip(starts, chunks, strict=True)
        for k in range(chunk.logits)
    ]
