"""Packed forward passes over a paged KV cache, for GPUs with a kernel that reads it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from enginebay import Chunk, RunnerMemory
from enginebay_hf.lora import Adapters
from enginebay_hf.media.inputs import MediaInputs
from enginebay_hf.media.runner import MediaRunner
from enginebay_hf.packed.decoder import Decoder
from enginebay_hf.packed.graphs import Capture, DecodeGraphs
from enginebay_hf.packed.memory import LayerShape, layout_of
from enginebay_hf.packed.model import PackedModel
from enginebay_hf.packed.paged_attention import Kernel, PagedAttention, layout
from enginebay_hf.packed.pages import PAGE_SIZE, PagedMemory
from enginebay_hf.sampling_runner import Vocabulary
from enginebay_hf.sizing import usable_tokens


class PagedRunner(MediaRunner):
    """A model in packed forward passes whose slots share the pages of common prefixes.

    `layers` is what `layer_shapes` says of the model. `capacity` is the most tokens of a slot.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Mapping[int, LayerShape],
        vocabulary: Vocabulary,
        kernel: Kernel,
        *,
        slots: int,
        capacity: int,
        pages: int,
        page_size: int = PAGE_SIZE,
        adapters: Adapters | None = None,
        media: MediaInputs | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        super().__init__(vocabulary, media)
        self.memory = RunnerMemory(
            slots=slots, tokens=usable_tokens(slots, pages, page_size), shares=True
        )
        self._adapters = adapters
        self._model = PackedModel(model, adapters, media, decoder)
        self._kernel = kernel
        self._pages = PagedMemory(
            layers, slots=slots, capacity=capacity, pages=pages, page_size=page_size
        )
        self._graphs: DecodeGraphs | None = None
        self.state_layout = f"pages of {page_size}: {layout_of(layers.values())}"

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        self._pages.extend([(c.slot, c.start, c.start + len(c.token_ids)) for c in chunks])
        if self._graphs and all(self._is_text(chunk) for chunk in chunks):
            logits = self._graphs.run(chunks)
            if logits is not None:
                wanted = _wanted(chunks)
                return logits if len(wanted) == len(logits) else logits[wanted]
        attention = PagedAttention(self._pages, layout(self._pages, chunks), self._kernel)
        return self._model.run(attention, chunks, _wanted(chunks))

    def _is_text(self, chunk: Chunk) -> bool:
        return self.media is None or self.media.is_text(chunk)

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._pages.share(source, target, tokens)

    @torch.inference_mode()
    def cut(self, slot: int, tokens: int) -> None:
        self._pages.cut(slot, tokens)

    def fingerprint(self, adapter: str) -> str | None:
        return self._adapters.fingerprint(adapter) if self._adapters else None

    @torch.inference_mode()
    def save(self, slot: int, tokens: int) -> memoryview:
        return self._pages.save(slot).numpy().data

    @torch.inference_mode()
    def restore(self, slot: int, state: memoryview, held: int, tokens: int) -> None:
        saved = torch.frombuffer(state, dtype=torch.uint8)
        self._pages.restore(slot, saved, held, tokens)

    def clear(self) -> None:
        super().clear()
        for slot in range(self.memory.slots):
            self.cut(slot, 0)

    def capture(self, capture: Capture, *, rows: int) -> list[int]:
        """Decode up to `rows` sequences by captured passes from now on; the sizes there are."""
        self._graphs = DecodeGraphs(self._model, self._pages, self._kernel, capture, rows=rows)
        return self._graphs.sizes

    def drop_captured(self) -> None:
        """Stop using captured passes."""
        self._graphs = None


def _wanted(chunks: Sequence[Chunk]) -> list[int]:
    """The tokens of a pass of `chunks` whose logits are wanted."""
    wanted: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        wanted += range(end - chunk.logits, end)
    return wanted
