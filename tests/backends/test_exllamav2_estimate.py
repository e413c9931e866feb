"""What a folder takes of GPUs by its headers, against the model that the library loads. MOD-5"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay import BackendSettings, BackendUnavailableError, FreeMemory, MemoryEstimate
from enginebay_exllamav2.estimate import estimate_memory
from enginebay_exllamav2.options import ExLlamaV2Options
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.support import DEMO_MODEL

GIB = 2**30
ELEMENTS = 4 * 256 + 256 * 4  # of a LoRA


def estimate(free_gpu: int | None = None, base: Path = Path(), **options: Any) -> MemoryEstimate:
    settings = BackendSettings(
        name="m",
        path=str(DEMO_MODEL),
        base=str(base),
        options=ExLlamaV2Options.model_validate(options),
    )
    return estimate_memory(settings, FreeMemory(20 * GIB, free_gpu))


def taken(estimate: MemoryEstimate) -> dict[str, int]:
    return {part.name: part.gpu for part in estimate.parts}


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    """A folder `lora`, in 32 bits, of which exllamav2 makes 16."""
    folder = tmp_path / "lora"
    folder.mkdir()
    tensors = {"a": torch.zeros(4, 256), "b": torch.zeros(256, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context_length": 512},
        {"cache_tokens": 3000},
        {"draft_model": str(DEMO_MODEL), "draft_tokens": 3},
    ],
    ids=str,
)
def test_weights_and_cache_are_those_of_the_loaded_model(
    load_exllamav2: LoadExLlamaV2, options: dict[str, Any]
) -> None:
    small = {"context_length": 2048, "max_batch_size": 8, "prefill_tokens": 512}
    found = estimate(**small | options)
    engine = load_exllamav2(DEMO_MODEL, **options)
    caches = [each for each in (engine._model.cache, engine._model.draft_cache) if each]
    tensors = [t for cache in caches for t in (*cache.key_states, *cache.value_states)]
    assert taken(found)["kv_cache"] == sum(t.numel() * t.element_size() for t in tensors)
    assert found.context_length == engine.info.context_length
    stored = load_file(DEMO_MODEL / "model.safetensors").values()
    assert taken(found)["weights"] == sum(2 * tensor.numel() for tensor in stored)
    drafts = taken(found)["weights"] if len(caches) == 2 else None
    assert taken(found).get("draft_model") == drafts
    engine.close()


@pytest.mark.parametrize("as_mapping", [False, True])
def test_loras_count(tmp_path: Path, lora: Path, as_mapping: bool) -> None:
    given: Any = {"path": "lora", "scale": 0.5} if as_mapping else str(lora)
    without = estimate(4 * GIB, tmp_path, context_length=512)
    one = estimate(4 * GIB, tmp_path, context_length=512, adapters={"a": given})
    two = estimate(4 * GIB, tmp_path, context_length=512, adapters={"a": given, "b": given})
    assert "adapters" not in taken(without)
    assert taken(one)["adapters"] == 2 * ELEMENTS
    assert taken(two)["adapters"] == 4 * ELEMENTS
    assert two.least.gpu - without.least.gpu == 4 * ELEMENTS
    (lora / "adapter_model.safetensors").write_bytes(b"damaged")
    assert taken(estimate(4 * GIB, tmp_path, adapters={"a": given})) == taken(estimate(4 * GIB))


def test_the_cache_leaves_room_for_loras(tmp_path: Path, lora: Path) -> None:
    save_file({"a": torch.zeros(64, 1 << 20)}, lora / "adapter_model.safetensors")
    free = 400 << 20
    without = estimate(free, tmp_path, max_batch_size=256)
    beside = estimate(free, tmp_path, max_batch_size=256, adapters={"a": "lora"})
    assert taken(without)["kv_cache"] - taken(beside)["kv_cache"] > 100 << 20


def test_little_memory_is_short_and_what_helps(tmp_path: Path) -> None:
    assert not estimate(4 * GIB).short
    assert estimate(14 << 20).short
    assert estimate(0).short
    assert estimate(0).least == estimate(4 * GIB).least
    changes = estimate(14 << 20).smaller
    assert {"cache_type": "q4"} in changes
    assert {"max_batch_size": 4} in changes
    q4 = estimate(4 * GIB, cache_type="q4", cache_tokens=4096)
    assert taken(q4)["kv_cache"] < taken(estimate(4 * GIB, cache_tokens=4096))["kv_cache"] / 2
    few = estimate(4 * GIB, max_batch_size=4, prefill_tokens=256)
    assert taken(few)["buffers"] < taken(estimate(4 * GIB))["buffers"]
    settings = BackendSettings(name="m", path=str(tmp_path))
    with pytest.raises(BackendUnavailableError, match=r"no config\.json"):
        estimate_memory(settings, FreeMemory(GIB))
