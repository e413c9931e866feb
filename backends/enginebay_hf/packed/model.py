"""A model of transformers, called with all tokens of a pass in one row."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from enginebay import Chunk
from enginebay_hf.lora import Adapters
from enginebay_hf.media.inputs import MediaInputs
from enginebay_hf.packed.attention import Attention, forward
from enginebay_hf.packed.decoder import Decoder
from enginebay_hf.packed.switching import switch


def padded(tokens: int) -> int:
    """`tokens` rounded up to four significant bits: at most an eighth is added, to 17 or more."""
    step = 1 << max(0, tokens.bit_length() - 4)
    return -(-tokens // step) * step


class PackedModel:
    """A `model` switched to packed attention.

    `decoder` runs its layers on tokens, if there is one; else, and on what is made of media, the
    model's own code does. `device` is where its inputs go, `dtype` what it computes in.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        adapters: Adapters | None = None,
        media: MediaInputs | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        model.train(False)
        switch(model)
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.dtype: torch.dtype = model.dtype
        self.model = model
        self.media = media
        self._decoder = decoder
        self._adapters = adapters or Adapters(model)
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self,
        attention: Attention,
        inputs: Tensor | dict[str, Any],
        positions: Tensor,
        wanted: Tensor,
    ) -> Tensor:
        """The logits of the tokens `wanted`, `[rows, vocabulary]` in float32.

        `inputs` are ids, or arguments for tokens and rows. `positions` are `[tokens]` or
        `[axes, tokens]`. A placeholder of media is never likely.
        """
        if self._decoder and isinstance(inputs, Tensor):
            adapted = self._adapters.are_applied
            return self._decoder(attention, inputs, positions, wanted, adapted=adapted).float()
        arguments = inputs if isinstance(inputs, dict) else {"input_ids": inputs[None]}
        if self._keeps:
            arguments = {**arguments, "logits_to_keep": wanted}
        positions = positions[None] if positions.ndim == 1 else positions[:, None]

        def call() -> Any:
            return self.model(position_ids=positions, use_cache=False, **arguments)

        logits: Tensor = forward(attention, call).logits[0]
        logits = (logits if self._keeps else logits[wanted]).float()
        return self.media.without_placeholders(logits) if self.media else logits

    def run(self, attention: Attention, chunks: Sequence[Chunk], wanted: Sequence[int]) -> Tensor:
        """The logits of the tokens `wanted` in a pass of `chunks`, one after another.

        On a CPU the pass is padded to one of few sizes: for each new size that a matrix product is
        asked for, oneDNN makes and keeps a program.
        """
        tokens = sum(len(chunk.token_ids) for chunk in chunks)
        padding = padded(tokens) - tokens if self.device.type == "cpu" else 0
        adapters = [chunk.adapter for chunk in chunks for _ in chunk.token_ids]
        adapters += adapters[-1:] * padding
        if self.media is None:
            ids = [token for chunk in chunks for token in chunk.token_ids] + [0] * padding
            inputs: Tensor | dict[str, Any] = self._tensor(ids)
            positions = self._tensor(_positions(chunks) + [0] * padding)
        else:
            ids = [token for chunk in chunks for token in self.media.ids(chunk)]
            ids += [self.media.other_id] * padding
            inputs = self.media.arguments(chunks, self._tensor(ids))
            positions = F.pad(self.media.positions(chunks), (0, padding)).to(self.device)
        with self._adapters.applied(adapters):
            return self(attention, inputs, positions, self._tensor(wanted))

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


def _positions(chunks: Sequence[Chunk]) -> list[int]:
    return [
        position
        for chunk in chunks
        for position in range(chunk.start, chunk.start + len(chunk.token_ids))
    ]
