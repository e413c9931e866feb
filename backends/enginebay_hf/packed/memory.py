"""The KV cache of all layers: one region per slot, which takes physical memory only while used."""

import mmap
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_GIVES_BACK = sys.platform == "linux"
# More may be mapped than there is memory: most slots are never full. Older Pythons lack the name.
_MAP_NORESERVE: int = getattr(
    mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0
)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches of a token: `heads` keys and values of these sizes."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token in this layer."""
        return self.heads * (self.key_size + self.value_size) * self.dtype.itemsize


def bytes_per_token(layers: Iterable[LayerShape]) -> int:
    """Memory of one token in all layers."""
    return sum(layer.bytes_per_token for layer in layers)


def layout_of(layers: Iterable[LayerShape]) -> str:
    """What tells the keys and values of these layers from those of others."""
    kinds = {
        f"{each.heads} x ({each.key_size} + {each.value_size}) {each.dtype}" for each in layers
    }
    return ", ".join(sorted(kinds))


class KeyValueMemory:
    """`keys[layer]` and `values[layer]` are `[slots, heads, capacity, size]`, zero at first.

    On Linux CPUs a token takes memory when it is written and gives it back when it is forgotten;
    elsewhere all of it is taken at once. `MemoryError` if there is no room.
    """

    def __init__(self, layers: Mapping[int, LayerShape], *, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        self._regions: list[_Region] = []
        self.keys = {i: self._allocate(layer, layer.key_size) for i, layer in layers.items()}
        self.values = {i: self._allocate(layer, layer.value_size) for i, layer in layers.items()}
        self._written = [0] * slots  # tokens from here on have never been written, or are zero

    def write(self, slot: int, tokens: int) -> None:
        """Note that the first `tokens` of a slot may have been written."""
        if tokens > self.capacity:
            raise ValueError(f"{tokens} tokens do not fit into a slot of {self.capacity}")
        self._written[slot] = max(self._written[slot], tokens)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Write the first `tokens` of `source` into `target`."""
        self.write(target, tokens)
        for region in self._regions:
            region.tensor[target, :, :tokens] = region.tensor[source, :, :tokens]

    def save(self, slot: int, tokens: int) -> Tensor:
        """A copy of the first `tokens` of a slot, as bytes: layer by layer, keys before values."""
        parts = [region.tensor[slot, :, :tokens] for region in self._regions]
        state = torch.empty(sum(part.nbytes for part in parts), dtype=torch.uint8)
        for part, there in zip(parts, _split(state, parts), strict=True):
            there.copy_(part)
        return state

    def restore(self, slot: int, state: Tensor, held: int, tokens: int) -> None:
        """Write the first `tokens` of such a copy of `held` tokens into a slot."""
        self.write(slot, tokens)
        whole = [region.tensor[slot, :, :held] for region in self._regions]
        for part, saved in zip(whole, _split(state, whole), strict=True):
            part[:, :tokens] = saved[:, :tokens]

    def forget(self, slot: int, tokens: int) -> None:
        """Zero what a slot holds after its first `tokens`, and return the memory."""
        end = self._written[slot]
        if tokens < end:
            for region in self._regions:
                region.forget(slot, tokens, end)
            self._written[slot] = tokens

    def written(self, slot: int) -> int:
        """How many tokens of a slot may have been written since it was last empty."""
        return self._written[slot]

    def _allocate(self, layer: LayerShape, size: int) -> Tensor:
        shape = (self.slots, layer.heads, self.capacity, size)
        lazy = _GIVES_BACK and layer.device.type == "cpu"
        region = _LazyRegion(shape, layer) if lazy else _Region(shape, layer)
        self._regions.append(region)
        return region.tensor


def _split(state: Tensor, parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """The bytes that stand for each of the parts, in their shapes and number formats."""
    if state.numel() != sum(part.nbytes for part in parts):
        raise ValueError(f"{state.numel()} bytes are not of these tokens")
    start = 0
    for part in parts:
        yield state[start : start + part.nbytes].view(part.dtype).view(part.shape)
        start += part.nbytes


class _Region:
    tensor: Tensor

    def __init__(self, shape: tuple[int, ...], layer: LayerShape) -> None:
        self.tensor = torch.zeros(shape, dtype=layer.dtype, device=layer.device)

    def forget(self, slot: int, start: int, end: int) -> None:
        self.tensor[slot, :, start:end] = 0


class _LazyRegion(_Region):
    """Anonymous pages: they read as zero and are taken when written."""

    def __init__(self, shape: tuple[int, ...], layer: LayerShape) -> None:
        size = max(prod(shape) * layer.dtype.itemsize, 1)
        try:
            # Private: the pages of a shared mapping would not be freed by MADV_DONTNEED.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            self._pages = mmap.mmap(-1, size, flags=flags)
        except OSError as error:
            raise MemoryError(f"cannot allocate {size} bytes for keys and values") from error
        # A huge page would be taken whole for its first token.
        self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self.tensor = self._bytes.view(layer.dtype).view(shape)

    def forget(self, slot: int, start: int, end: int) -> None:
        slots = self.tensor.stride(0) * self.tensor.itemsize
        if start == 0:
            self._forget_bytes(slot * slots, (slot + 1) * slots)
            return
        heads = self.tensor.stride(1) * self.tensor.itemsize
        tokens = self.tensor.stride(2) * self.tensor.itemsize
        for head in range(self.tensor.shape[1]):
            at = slot * slots + head * heads
            self._forget_bytes(at + start * tokens, at + end * tokens)

    def _forget_bytes(self, start: int, end: int) -> None:
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, end // page * page
        if first >= last:
            self._bytes[start:end] = 0
            return
        self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._bytes[start:first] = 0
        self._bytes[last:end] = 0
