"""Runs chunks of many sequences in one forward pass without padding."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from enginebay import Chunk, RunnerMemory
from enginebay_hf.lora import Adapters
from enginebay_hf.media.inputs import MediaInputs, Sees
from enginebay_hf.media.runner import MediaRunner
from enginebay_hf.packed.attention import SHORT, Group, PackedAttention
from enginebay_hf.packed.decoder import Decoder
from enginebay_hf.packed.kernels import products_pay
from enginebay_hf.packed.memory import KeyValueMemory, LayerShape, layout_of
from enginebay_hf.packed.model import PackedModel
from enginebay_hf.sampling_runner import Vocabulary

# Slots of different lengths that are run together all read as far as the longest. On a CPU a group
# of its own is cheaper than this many tokens read in vain.
_TOKENS_IN_VAIN = 512
_FORGOTTEN_AT_LEAST = 64


class PackedRunner(MediaRunner):
    """A model in packed forward passes, with one region of memory a slot.

    `layers` is what `layer_shapes` says of the model. `tokens` is how many tokens the scheduler may
    keep in all slots together, `slots * capacity` unless given.
    """

    ways: ClassVar[Sequence[Sees]] = ("past", "item", "item in windows")

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Mapping[int, LayerShape],
        vocabulary: Vocabulary,
        *,
        slots: int,
        capacity: int,
        tokens: int | None = None,
        adapters: Adapters | None = None,
        media: MediaInputs | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        super().__init__(vocabulary, media)
        self.memory = RunnerMemory(slots=slots, tokens=tokens or slots * capacity)
        self._adapters = adapters
        self._model = PackedModel(model, adapters, media, decoder)
        on_cpu = self._model.device.type == "cpu"
        self._in_vain = _TOKENS_IN_VAIN if on_cpu else slots * capacity
        bfloat16 = all(layer.dtype == torch.bfloat16 for layer in layers.values())
        self._by_products = on_cpu and bfloat16 and products_pay()
        self._key_values = KeyValueMemory(layers, slots=slots, capacity=capacity)
        self.state_layout = f"rows: {layout_of(layers.values())}"

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        order = sorted(range(len(chunks)), key=lambda i: _place(chunks[i]))
        packed = [chunks[i] for i in order]
        for chunk in packed:
            self._key_values.write(chunk.slot, chunk.start + len(chunk.token_ids))
        ends = [0] * len(chunks)
        end = 0
        for i in order:
            end += len(chunks[i].token_ids)
            ends[i] = end
        wanted = [
            row
            for chunk, end in zip(chunks, ends, strict=True)
            for row in range(end - chunk.logits, end)
        ]
        groups = self._groups(packed)
        attention = PackedAttention(self._key_values, groups, by_products=self._by_products)
        return self._model.run(attention, packed, wanted)

    def _groups(self, chunks: Sequence[Chunk]) -> list[Group]:
        groups: list[Group] = []
        several: list[Chunk] = []
        for chunk in chunks:
            if reach := self.media.reach(chunk) if self.media else ():
                assert self.media
                groups += _groups(several, groups[-1].end if groups else 0, self._in_vain)
                several = []
                group = _group([chunk], groups[-1].end if groups else 0)
                windows_only = "item in windows" in self.media.sees.values()
                groups.append(replace(group, reach=reach, windows_only=windows_only))
            else:
                several.append(chunk)
        return groups + list(_groups(several, groups[-1].end if groups else 0, self._in_vain))

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._key_values.copy(source, target, tokens)

    def cut(self, slot: int, tokens: int) -> None:
        # What a few rejected tokens have left behind is overwritten by the next ones.
        dropped = self._key_values.written(slot) - tokens
        if tokens == 0 or dropped >= _FORGOTTEN_AT_LEAST:
            self._key_values.forget(slot, tokens)

    def fingerprint(self, adapter: str) -> str | None:
        return self._adapters.fingerprint(adapter) if self._adapters else None

    @torch.inference_mode()
    def save(self, slot: int, tokens: int) -> memoryview:
        return self._key_values.save(slot, tokens).numpy().data

    @torch.inference_mode()
    def restore(self, slot: int, state: memoryview, held: int, tokens: int) -> None:
        saved = torch.frombuffer(state, dtype=torch.uint8)
        self._key_values.restore(slot, saved, held, tokens)

    def clear(self) -> None:
        super().clear()
        for slot in range(self.memory.slots):
            self._key_values.forget(slot, 0)


class WholePromptRunner(PackedRunner):
    """The same of a model whose prompts see all of themselves: those with media, no others."""

    ways: ClassVar[Sequence[Sees]] = ("prompt",)


def _place(chunk: Chunk) -> tuple[int, int]:
    """Where a chunk comes in the pass: those that can be run together side by side."""
    return len(chunk.token_ids), chunk.slot


def _groups(chunks: Sequence[Chunk], offset: int, in_vain: int) -> Iterator[Group]:
    """Neighbouring slots with chunks of the same, small length and similar starts."""
    group: list[Chunk] = []
    for chunk in chunks:
        if group and not _joins(group, chunk, in_vain):
            yield _group(group, offset)
            offset += sum(len(c.token_ids) for c in group)
            group = []
        group.append(chunk)
    if group:
        yield _group(group, offset)


def _joins(group: Sequence[Chunk], chunk: Chunk, in_vain: int) -> bool:
    last = group[-1]
    tokens = len(chunk.token_ids)
    if tokens > SHORT or len(last.token_ids) != tokens or last.slot + 1 != chunk.slot:
        return False
    starts = [c.start for c in (*group, chunk)]
    return max(starts) * len(starts) - sum(starts) <= in_vain


def _group(chunks: Sequence[Chunk], offset: int) -> Group:
    first = chunks[0]
    return Group(first.slot, len(first.token_ids), offset, [chunk.start for chunk in chunks])
