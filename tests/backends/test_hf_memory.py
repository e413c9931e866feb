"""The memory of packed passes: what it forgets is zero, and what it does not use is not taken."""

import mmap
import sys
from pathlib import Path

import pytest
import torch

from enginebay_hf.packed.memory import KeyValueMemory, LayerShape, bytes_per_token


def layers(heads: int = 2) -> dict[int, LayerShape]:
    cpu = torch.device("cpu")
    return {
        0: LayerShape(heads, 8, 4, torch.bfloat16, cpu),
        3: LayerShape(heads, 5, 5, torch.float32, cpu),
    }


def test_bytes_per_token() -> None:
    assert bytes_per_token(layers().values()) == 2 * (8 + 4) * 2 + 2 * (5 + 5) * 4


@pytest.mark.parametrize("kept", [0, 1, 700])
@pytest.mark.parametrize("capacity", [1000, 1001])
def test_what_is_forgotten_is_zero_and_nothing_else_is(kept: int, capacity: int) -> None:
    memory = KeyValueMemory(layers(), slots=3, capacity=capacity)
    tensors = [*memory.keys.values(), *memory.values.values()]
    assert all(not tensor.any() for tensor in tensors)
    for tensor in tensors:
        tensor.fill_(1)
    for slot in range(3):
        memory.write(slot, capacity)
    memory.forget(1, kept)
    for tensor in tensors:
        expected = torch.ones_like(tensor)
        expected[1, :, kept:] = 0
        assert torch.equal(tensor, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_taken_when_written_and_given_back() -> None:
    big = {0: LayerShape(2, 64, 64, torch.float32, torch.device("cpu"))}
    before = resident()
    memory = KeyValueMemory(big, slots=1000, capacity=1 << 16)  # 64 GB
    assert resident() - before < 10
    written = slice(0, 1 << 14)
    for tensor in (memory.keys[0], memory.values[0]):
        tensor[500, :, written] = 1
    memory.write(500, written.stop)
    assert 14 < resident() - before < 30
    memory.copy(500, 7, written.stop)
    assert 28 < resident() - before < 50
    memory.forget(500, 1 << 10)
    memory.forget(7, 0)
    assert resident() - before < 10


def resident() -> float:
    """Physical memory of this process, in MiB."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * mmap.PAGESIZE / 2**20
