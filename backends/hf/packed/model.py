"""A model of transformers, called with all tokens of a pass in one row."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from backends.hf.lora import Adapters
from backends.hf.packed.attention import NAME, Attention, forward
from enginebay import Chunk


def padded(tokens: int) -> int:
    """`tokens` rounded up to four significant bits: at most an eighth is added, to 17 or more."""
    step = 1 << max(0, tokens.bit_length() - 4)
    return -(-tokens // step) * step


class PackedModel:
    """A `model` switched to packed attention.

    `device` is where its inputs go, `dtype` what it computes in.
    """

    def __init__(self, model: PreTrainedModel, adapters: Adapters | None = None) -> None:
        model.train(False)
        model.set_attn_implementation(NAME)
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.dtype: torch.dtype = model.dtype
        self.model = model
        self._adapters = adapters or Adapters(model)
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self, attention: Attention, ids: Tensor, positions: Tensor, wanted: Tensor
    ) -> Tensor:
        """The logits of the tokens `wanted`, `[rows, vocabulary]` in float32."""
        arguments: dict[str, Any] = {"logits_to_keep": wanted} if self._keeps else {}

        def call() -> Any:
            return self.model(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, **arguments
            )

        logits: Tensor = forward(attention, call).logits[0]
        return (logits if self._keeps else logits[wanted]).float()

    def run(self, attention: Attention, chunks: Sequence[Chunk], wanted: Sequence[int]) -> Tensor:
        """The logits of the tokens `wanted` in a pass of `chunks`, one after another.

        On a CPU the pass is padded to one of few sizes: for each new size that a matrix product is
        asked for, oneDNN makes and keeps a program.
        """
        ids = [token for chunk in chunks for token in chunk.token_ids]
        positions = [
            position
            for chunk in chunks
            for position in range(chunk.start, chunk.start + len(chunk.token_ids))
        ]
        adapters = [chunk.adapter for chunk in chunks for _ in chunk.token_ids]
        padding = padded(len(ids)) - len(ids) if self.device.type == "cpu" else 0
        ids += [0] * padding
        positions += [0] * padding
        adapters += adapters[-1:] * padding
        with self._adapters.applied(adapters):
            return self(attention, self._tensor(ids), self._tensor(positions), self._tensor(wanted))

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)
