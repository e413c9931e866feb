"""Forward passes with transformers' caches: one prompt alone, or one token of every row."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from enginebay import Chunk
from enginebay_hf.media.inputs import MediaInputs
from enginebay_hf.native.cache import append, pick, select
from enginebay_hf.packed.int8 import rounding


class Batch:
    """The cache of the rows that are decoded together, and how many tokens each has in it."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._cache: Cache | None = None

    @property
    def cache(self) -> Cache:
        """The cache; there must be rows."""
        assert self._cache is not None
        return self._cache

    @property
    def width(self) -> int:
        """Tokens of the longest row; the others are padded to it on the left."""
        return max(self.lengths, default=0)

    def join(self, cache: Cache, length: int) -> None:
        """Add the cache of a row of `length` tokens."""
        if self._cache is None:
            self._cache = cache
        else:
            append(self._cache, cache)
        self.lengths.append(length)

    def copy(self, row: int) -> tuple[Cache, int]:
        """A cache of this row alone, and its length."""
        length = self.lengths[row]
        return pick(self.cache, row, crop=self.width - length), length

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, and drop padding that is no longer needed."""
        if len(rows) == len(self.lengths):
            return
        old_width = self.width
        self.lengths = [self.lengths[row] for row in rows]
        if self._cache is None or not rows:
            self._cache = None
        else:
            select(self._cache, torch.tensor(rows), crop=old_width - self.width)


class Forward:
    """A loaded model. Logits come as float32 `[rows, vocabulary]`, on the model's device."""

    def __init__(self, model: PreTrainedModel, media: MediaInputs | None = None) -> None:
        model.train(False)
        self._model = model
        self.media = media
        self.dtype = model.dtype
        self.rounding = rounding(model)
        # Weights offloaded to disk are on "meta"; accelerate then moves the inputs itself.
        self._device = torch.device("cpu") if model.device.type == "meta" else model.device
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        # Purely recurrent models (mamba) name the cache so, and have no padding to be masked.
        self._recurrent = "cache_params" in parameters

    @torch.inference_mode()
    def prefill(
        self, token_ids: Sequence[int], cache: Cache | None = None, start: int = 0
    ) -> tuple[Tensor, Cache]:
        """Logits after a prompt or its next chunk, and the cache of its one row.

        `cache` holds the `start` tokens before the chunk; it is changed.
        """
        if cache is None:
            cache = DynamicCache(config=self._model.config)
        ids = torch.tensor([token_ids], device=self._device)
        end = start + len(token_ids)
        positions = torch.arange(start, end, device=self._device)[None]
        mask = torch.ones((1, end), dtype=torch.long, device=self._device)
        return self._forward({"input_ids": ids}, mask, positions, cache), cache

    @torch.inference_mode()
    def prefill_media(self, chunk: Chunk) -> tuple[Tensor, Cache]:
        """As `prefill`, for a whole prompt that may have media; the model must take some."""
        assert self.media
        cache = DynamicCache(config=self._model.config)
        ids = torch.tensor(self.media.ids(chunk), device=self._device)
        inputs = self.media.arguments([chunk], ids)
        for name, types in self.media.types(chunk, len(ids)).items():
            inputs[name] = types.to(self._device)
        positions = self._positions([chunk]).transpose(-1, -2)
        mask = torch.ones((1, len(ids)), dtype=torch.long, device=self._device)
        return self._forward(inputs, mask, positions, cache), cache

    @torch.inference_mode()
    def decode(
        self, batch: Batch, token_ids: Sequence[int], chunks: Sequence[Chunk] = ()
    ) -> Tensor:
        """Logits after one more token a row; the batch's cache grows by it.

        `chunks` are the rows' own if the model takes media, whose positions these know.
        """
        lengths = torch.tensor(batch.lengths, device=self._device)[:, None]
        columns = torch.arange(batch.width + 1, device=self._device)
        mask = (columns >= batch.width - lengths).long()
        if self.media and chunks:
            token_ids = [token for chunk in chunks for token in self.media.ids(chunk)]
        ids = torch.tensor(token_ids, device=self._device)[:, None]
        positions = self._positions(chunks) if chunks else lengths
        logits = self._forward({"input_ids": ids}, mask, positions, batch.cache)
        batch.lengths = [length + 1 for length in batch.lengths]
        return logits

    def _positions(self, chunks: Sequence[Chunk]) -> Tensor:
        """`[tokens, 1]`, or `[axes, tokens, 1]`, of all chunks' tokens."""
        assert self.media
        return self.media.positions(chunks)[..., None].to(self._device)

    def _forward(
        self, inputs: dict[str, Tensor], mask: Tensor, positions: Tensor, cache: Cache
    ) -> Tensor:
        arguments: dict[str, Any] = {**inputs, **self._last_logits}
        if self._recurrent:
            arguments["cache_params"] = cache
        else:
            arguments.update(past_key_values=cache, attention_mask=mask)
        if self._takes_positions:
            arguments["position_ids"] = positions
        output = self._model(use_cache=True, **arguments)
        logits: Tensor = output.logits[:, -1].float()
        return self.media.without_placeholders(logits) if self.media else logits
