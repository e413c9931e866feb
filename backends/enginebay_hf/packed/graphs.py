"""Decoding by replaying CUDA graphs: no Python and no launches between the kernels of a pass.

A graph has fixed shapes and addresses, so there is one for each power of two of tokens, reading its
inputs from tensors that are filled before. Every token is a row of its own, with the pages of its
sequence and the length up to it: so short chunks, of forced tokens say, are decoded as well. What
is left of a batch is padding: sequences of one token on the spare page.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from enginebay import Chunk
from enginebay_hf.packed.model import PackedModel
from enginebay_hf.packed.paged_attention import Kernel, Layout, PagedAttention, sums
from enginebay_hf.packed.pages import PagedMemory

Replay = Callable[[], Tensor]
"""Recomputes the logits from the current contents of the input tensors."""

Capture = Callable[[Replay], Replay]
"""Turns a forward pass into one that launches its kernels at once, like `CudaCapture`."""


class DecodeForward:
    """A forward pass of `rows` tokens of any sequences, in fixed tensors."""

    def __init__(
        self, model: PackedModel, memory: PagedMemory, kernel: Kernel, *, rows: int
    ) -> None:
        self._model = model
        self._memory = memory
        self._kernel = kernel
        self._rows = rows
        device, pages = memory.device, memory.tables.shape[1]
        # One tensor, so that it is filled by one copy: a token, the length with it, the pages.
        self._inputs = torch.zeros(rows, 2 + pages, dtype=torch.int32, device=device)
        self._inputs[:, 1] = 1
        self._bounds = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._wanted = torch.arange(rows, device=device)

    def fill(self, chunks: Sequence[Chunk]) -> None:
        """Set the inputs: chunks of up to `rows` tokens together, in the first rows."""
        inputs = torch.zeros(self._inputs.shape, dtype=torch.int32)
        inputs[:, 1] = 1
        tokens = [
            (token_id, chunk.start + place + 1, chunk.slot)
            for chunk in chunks
            for place, token_id in enumerate(chunk.token_ids)
        ]
        inputs[: len(tokens), :2] = torch.tensor([token[:2] for token in tokens])
        inputs[: len(tokens), 2:] = self._memory.tables[[slot for _, _, slot in tokens]]
        self._inputs.copy_(inputs)

    def __call__(self) -> Tensor:
        """Logits of all rows, padding too, in float32."""
        size = self._memory.page_size
        lengths = self._inputs[:, 1].contiguous()
        table = self._inputs[:, 2:].contiguous()
        positions = (lengths - 1).long()
        pages = table.gather(1, (positions // size)[:, None])[:, 0].long()
        layout = Layout(
            places=pages * size + positions % size,
            bounds=self._bounds,
            lengths=lengths,
            key_bounds=sums(lengths),
            table=table,
            longest_chunk=1,
            longest=self._memory.capacity,
        )
        attention = PagedAttention(self._memory, layout, self._kernel)
        return self._model(attention, self._inputs[:, 0].long(), positions, self._wanted)


class DecodeGraphs:
    """Captured passes of up to `rows` tokens; whatever capturing raises comes out."""

    @torch.inference_mode()
    def __init__(
        self,
        model: PackedModel,
        memory: PagedMemory,
        kernel: Kernel,
        capture: Capture,
        *,
        rows: int,
    ) -> None:
        self._passes: dict[int, tuple[DecodeForward, Replay]] = {}
        for size in reversed(list(_sizes(rows))):  # the largest first: the others fit its memory
            decode = DecodeForward(model, memory, kernel, rows=size)
            self._passes[size] = decode, capture(decode)

    @property
    def sizes(self) -> list[int]:
        """How many tokens there are passes for."""
        return sorted(self._passes)

    def run(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """The logits of every token; None if no graph can run them."""
        if any(chunk.adapter is not None for chunk in chunks):
            return None
        tokens = sum(len(chunk.token_ids) for chunk in chunks)
        size = next((size for size in self.sizes if size >= tokens), None)
        if size is None:
            return None
        decode, replay = self._passes[size]
        decode.fill(chunks)
        # The next replay overwrites what this one returns.
        return replay()[:tokens].clone()


class CudaCapture:
    """Captures CUDA graphs, which share their memory: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Replay) -> Replay:
        """A graph of `forward`, which must neither wait for the device nor change shapes."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):  # libraries set themselves up in the first calls
                    forward()
            torch.cuda.current_stream().wait_stream(stream)
            # Other engines' threads may allocate meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                logits = forward()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


def _sizes(rows: int) -> Iterator[int]:
    size = 1
    while size < rows:
        yield size
        size *= 2
    yield size
