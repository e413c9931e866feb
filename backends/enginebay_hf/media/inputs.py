"""What forward passes are given of the media in their chunks: rows, positions, who sees whom."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from enginebay import (
    Chunk,
    GenerationRequest,
    Media,
    MediaSpan,
    Modality,
    Preparations,
    SizedCache,
)
from enginebay_hf.media.prepared import Prepared, Preparing
from enginebay_hf.media.towers import Rows, Towers, joined

Sees = Literal["past", "item", "item in windows", "prompt"]
"""What a placeholder's token attends to besides what comes before it.

Nothing; the rest of its item; that, in layers with a window only; or all tokens of a prompt with
items see all of that prompt.
"""

_KINDS: Mapping[Modality, int] = {"image": 1, "video": 2, "audio": 3}
_BATCH = 4096  # rows of one call of a tower, if there are several items
_PROMPT_BYTES = 128 << 20  # of layouts that are kept


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A request's prompt: `positions` `[axes, tokens]` if they are not simply counted.

    `kinds` says for each token what it stands for, as `Towers.rope_positions` has it. `keys` are
    those of its items; the items themselves, which may be large, end with their request.
    """

    keys: tuple[str, ...]
    kinds: Tensor
    positions: Tensor | None

    @property
    def nbytes(self) -> int:
        """Memory of its tensors."""
        return self.kinds.nbytes + (0 if self.positions is None else self.positions.nbytes)


class MediaInputs:
    """The media of chunks, for the runner of one model, on its engine thread.

    Encoded rows are kept by `Media.key`, up to `cache_bytes`. `sees` and `batches` are found out
    when the model is loaded: what tokens of each kind attend to, and the kinds of which several
    items may be encoded at once.
    `token_types` are arguments that transformers' own forward wants: what they are for text, and
    for placeholders.
    """

    def __init__(self, towers: Towers, processor: Preparing, *, cache_bytes: int) -> None:
        self.sees: Mapping[Modality, Sees] = {}
        self.batches: set[Modality] = set()
        self.token_types: dict[str, tuple[int, int]] = {}
        self._towers = towers
        self._processor = processor
        self._preparations = Preparations(processor.prepare, processor.kept)
        self._rows: SizedCache[Rows] = SizedCache(cache_bytes)
        self._prompts: SizedCache[_Prompt] = SizedCache(_PROMPT_BYTES)
        self._placeholders = frozenset(towers.row_ids.values())
        ids = iter(range(len(self._placeholders) + 1))
        self.other_id = next(i for i in ids if i not in self._placeholders)

    def without_placeholders(self, logits: Tensor) -> Tensor:
        """The same logits (`[rows, vocabulary]`), in which no placeholder can be sampled.

        Works on their device alone: a CUDA graph cannot capture a copy of ids to it.
        """
        logits = logits.clone()
        for row_id in self._placeholders:
            logits[:, row_id].fill_(-torch.inf)
        return logits

    @property
    def counts_positions(self) -> bool:
        """Whether a token's position is how many come before it."""
        return not self._towers.ropes_items

    def encoded(self, media: Media) -> bool:
        """Whether the rows of an item are at hand."""
        return media.key in self._rows

    def ready(self, media: Media) -> bool:
        """Whether an item is decoded; if not, that is done on another thread from now on."""
        return self._preparations.ready(media)

    def wait(self) -> None:
        """Wait a moment for items that are being decoded."""
        self._preparations.wait()

    def is_text(self, chunk: Chunk) -> bool:
        """Whether a chunk is like one of a model without media: no rows, and positions counted."""
        return chunk.request is None or (self.counts_positions and not any(self._parts(chunk)))

    def ids(self, chunk: Chunk) -> Sequence[int]:
        """The chunk's tokens: placeholders inside spans, and nowhere else.

        One that a client wrote or a model sampled would take rows of other items.
        """
        if self._placeholders.isdisjoint(chunk.token_ids) and not chunk.request:
            return chunk.token_ids
        ids = [self.other_id if id in self._placeholders else id for id in chunk.token_ids]
        for span, start, end in self._parts(chunk):
            row_id = self._towers.row_ids[span.media.kind]
            ids[start - chunk.start : end - chunk.start] = [row_id] * (end - start)
        return ids

    def reach(self, chunk: Chunk) -> Sequence[int]:
        """The last position that each token of a chunk sees; empty if it is always its own.

        A `ValueError` if that would be behind the chunk.
        """
        if chunk.request is None:
            return ()
        length = len(chunk.request.prompt_token_ids)
        if "prompt" in self.sees.values():
            spans = [(0, length)] if chunk.start < length else []
        else:
            seen = [span for span, _, _ in self._parts(chunk) if self._sees_ahead(span)]
            spans = [(span.start, span.end) for span in seen]
        if not spans:
            return ()
        end = chunk.start + len(chunk.token_ids)
        reach = list(range(chunk.start, end))
        for first, last in spans:
            if first < chunk.start or last > end:
                raise ValueError("tokens that see each other are in different chunks")
            reach[first - chunk.start : last - chunk.start] = [last - 1] * (last - first)
        return reach

    def positions(self, chunks: Sequence[Chunk]) -> Tensor:
        """Positions of the chunks' tokens, one after another: `[tokens]`, or `[axes, tokens]`."""
        if self.counts_positions or not any(chunk.request for chunk in chunks):
            return torch.cat([_counted(chunk) for chunk in chunks])
        parts = [self._roped(chunk) for chunk in chunks]
        axes = max(part.shape[0] for part in parts)
        return torch.cat([part.expand(axes, -1) for part in parts], -1)

    def arguments(self, chunks: Sequence[Chunk], ids: Tensor) -> dict[str, Any]:
        """How a model is given the tokens `ids` of a pass of `chunks`, with rows for their items.

        Encodes the items that are not at hand.
        """
        parts = [(span, start, end) for c in chunks for span, start, end in self._parts(c)]
        rows = self._encode([span.media for span, _, _ in parts])
        found: dict[Modality, list[Rows]] = {}
        for span, start, end in parts:
            first = span.first - span.start
            part = rows[span.media.key].part(first + start, first + end)
            found.setdefault(span.media.kind, []).append(part)
        return self._towers.arguments(ids, {kind: joined(parts) for kind, parts in found.items()})

    def types(self, chunk: Chunk, length: int) -> dict[str, Tensor]:
        """What transformers' own forward wants to know of a chunk's `length` tokens, from 0 up."""
        kinds = self._prompt(chunk.request).kinds if chunk.request else torch.zeros(0)
        inside = F.pad(kinds > 0, (0, length - len(kinds)))
        return {
            name: torch.where(inside, of_item, of_text)[None]
            for name, (of_text, of_item) in self.token_types.items()
        }

    def alone_and_together(self, media: Sequence[Media]) -> tuple[list[Rows], list[Rows]]:
        """The rows of items of one kind and shape, each encoded alone, and all in one batch."""
        items = [self._processor.prepare(item) for item in media]
        tensors, tokens = [item.tensors for item in items], items[0].tokens
        kind = media[0].kind
        alone = [self._towers.encode(kind, [item], tokens)[0] for item in tensors]
        return alone, self._towers.encode(kind, tensors, tokens)

    def clear(self) -> None:
        """Forget all that is kept."""
        self._rows.clear()
        self._prompts.clear()

    def _sees_ahead(self, span: MediaSpan) -> bool:
        return self.sees.get(span.media.kind, "past") != "past"

    def _parts(self, chunk: Chunk) -> Iterator[tuple[MediaSpan, int, int]]:
        """The spans in a chunk, and from where to where they are in it."""
        if chunk.request is None:
            return
        end = chunk.start + len(chunk.token_ids)
        for span in chunk.request.media:
            if span.start < end and span.end > chunk.start:
                yield span, max(span.start, chunk.start), min(span.end, end)

    def _roped(self, chunk: Chunk) -> Tensor:
        counted = _counted(chunk)
        if chunk.request is None:
            return counted[None]
        known = self._prompt(chunk.request).positions
        assert known is not None
        length = known.shape[1]
        later = counted[counted >= length] + int(known.max()) + 1 - length
        part = known[:, chunk.start : chunk.start + len(chunk.token_ids)]
        return torch.cat([part, later.expand(len(known), -1)], -1)

    def _prompt(self, request: GenerationRequest) -> _Prompt:
        keys = tuple(span.media.key for span in request.media)
        known = self._prompts.get(request.request_id)
        if known is None or known.keys != keys or len(known.kinds) != len(request.prompt_token_ids):
            known = self._laid_out(request, keys)
            self._prompts.put(request.request_id, known)
        return known

    def _laid_out(self, request: GenerationRequest, keys: tuple[str, ...]) -> _Prompt:
        kinds = torch.zeros(len(request.prompt_token_ids), dtype=torch.long)
        for span in request.media:
            kinds[span.start : span.end] = _KINDS[span.media.kind]
        if self.counts_positions:
            return _Prompt(keys, kinds, None)
        items = [span.media for span in request.media if not span.first]
        grids = [self._processor.outline(item).grids for item in items]
        ids = self.ids(Chunk(0, 0, request.prompt_token_ids, request=request))
        return _Prompt(keys, kinds, self._towers.rope_positions(ids, kinds, grids))

    def _encode(self, media: Sequence[Media]) -> dict[str, Rows]:
        """The rows of items by key, those at hand and others."""
        wanted = {item.key: item for item in media}
        found = {key: rows for key in wanted if (rows := self._rows.get(key))}
        missing = [item for key, item in wanted.items() if key not in found]
        for several in self._batched([(item, self._preparations.get(item)) for item in missing]):
            kind, tokens = several[0][0].kind, several[0][1].tokens
            tensors = [prepared.tensors for _, prepared in several]
            encoded = self._towers.encode(kind, tensors, tokens)
            for (item, _), made in zip(several, encoded, strict=True):
                found[item.key] = made.kept()
                self._rows.put(item.key, found[item.key])
                self._preparations.forget(item)
        return found

    def _batched(
        self, items: Sequence[tuple[Media, Prepared]]
    ) -> Iterator[list[tuple[Media, Prepared]]]:
        """Items that are encoded together: of one kind and shape, and not too many."""
        ordered = sorted(items, key=lambda pair: _shape(*pair))
        for _, same in groupby(ordered, key=lambda pair: _shape(*pair)):
            several = list(same)
            most = 1
            if several[0][0].kind in self.batches:
                most = max(1, _BATCH // max(1, several[0][1].tokens))
            for start in range(0, len(several), most):
                yield several[start : start + most]


def _shape(media: Media, prepared: Prepared) -> tuple[Any, ...]:
    shapes = sorted((name, tuple(tensor.shape)) for name, tensor in prepared.tensors.items())
    return media.kind, prepared.tokens, shapes


def _counted(chunk: Chunk) -> Tensor:
    return torch.arange(chunk.start, chunk.start + len(chunk.token_ids))
