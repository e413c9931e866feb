"""What a folder of transformers takes of memory, by its headers, against the loaded model."""

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoConfig, AutoModelForCausalLM

from enginebay import BackendSettings, FreeMemory, MemoryEstimate
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf import placement
from enginebay_hf.estimate import ModelShape, beside_weights, estimated
from enginebay_hf.number_format import NumberFormat
from enginebay_hf.options import HFOptions
from tests.backends.tiny import load, make_model

GIB = 2**30


def estimate(path: Path, free: FreeMemory | None = None, **options: Any) -> MemoryEstimate:
    settings = BackendSettings(
        name="m", path=str(path), base=str(path.parent), options=HFOptions(**options)
    )
    return estimated(settings, free or FreeMemory(20 * GIB))


def taken(estimate: MemoryEstimate) -> dict[str, int]:
    return {part.name: part.ram + part.gpu for part in estimate.parts}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_cache_are_those_of_the_loaded_model(tmp_path: Path, dtype: str) -> None:
    path = make_model(tmp_path)
    engine = load(path, dtype=dtype, prepack=False, cache_tokens=4096)
    stored = sum(count for _, count in Checkpoint(path).tensors)
    parts = taken(estimate(path, dtype=dtype, prepack=False, cache_tokens=4096))
    assert parts["weights"] == stored * getattr(torch, dtype).itemsize
    memory = engine._runner._key_values
    each = [*memory.keys.values(), *memory.values.values()]
    per_token = sum(t.shape[1] * t.shape[3] * t.itemsize for t in each)
    assert parts["kv_cache"] == engine._runner.memory.tokens * per_token
    assert "prepacked_weights" not in parts


def test_half_of_the_numbers_take_half(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    whole = taken(estimate(path, dtype="float32", cache_tokens=2048))
    half = taken(estimate(path, dtype="bfloat16", cache_tokens=2048))
    for name in ("weights", "kv_cache"):
        assert whole[name] == 2 * half[name]


def test_only_a_shared_output_layer_is_stored_twice(tmp_path: Path) -> None:
    """REAL-3: a plain weight is freed once it is prepacked."""
    tied = make_model(tmp_path / "tied", tie_word_embeddings=True)
    own = make_model(tmp_path / "own", tie_word_embeddings=False)
    assert "prepacked_weights" not in taken(estimate(own, dtype="float32"))
    if platform.machine() == "x86_64":
        config = AutoConfig.from_pretrained(tied)
        twice = taken(estimate(tied, dtype="float32"))["prepacked_weights"]
        assert twice == config.vocab_size * config.hidden_size * 4


def test_little_memory_is_short(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    assert not estimate(path).short
    assert estimate(path, FreeMemory(0)).short
    assert estimate(path, FreeMemory(0)).least == estimate(path, FreeMemory(0, swap=1)).least


def test_a_gpu_has_weights_and_cache(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    found = estimate(path, FreeMemory(20 * GIB, 20 * GIB))
    parts = {part.name: part for part in found.parts}
    assert parts["weights"].gpu
    assert not parts["weights"].ram
    assert parts["kv_cache"].gpu
    assert "prepacked_weights" not in parts
    on_cpu = estimate(path, FreeMemory(20 * GIB, 20 * GIB), device="cpu")
    assert on_cpu.total.gpu == 0


def test_a_model_that_is_spread_leaves_in_ram_what_the_gpu_has_no_room_for(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    options: dict[str, Any] = {"device_map": "auto", "context_length": 64, "cache_tokens": 64}
    whole = estimate(path, FreeMemory(20 * GIB, 20 * GIB), **options)
    weights = whole.parts[0].gpu
    assert whole.parts[0].ram == 0
    free = whole.total.gpu - weights // 2
    spread = estimate(path, FreeMemory(20 * GIB, free), **options)
    assert spread.total.gpu == spread.least.gpu == free
    assert spread.parts[0].ram == weights - spread.parts[0].gpu > 0
    none = estimate(path, FreeMemory(20 * GIB, 20 * GIB), max_memory={"cpu": 1}, **options)
    assert none.parts[0].gpu == 0
    alone = {**options, "device_map": None}
    assert estimate(path, FreeMemory(20 * GIB, free), **alone).least.gpu > free


def test_shared_heads_linear_layers_and_latent_attention(tmp_path: Path) -> None:
    checkpoint = Checkpoint(make_model(tmp_path))

    def token_bytes(**config: Any) -> int:
        base = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}
        return ModelShape(
            checkpoint, {**base, **config}, NumberFormat("bfloat16", "bfloat16")
        ).token_bytes

    assert token_bytes() == 4 * 8 * (8 + 8) * 2
    assert token_bytes(num_key_value_heads=2) == 4 * 2 * (8 + 8) * 2
    assert token_bytes(head_dim=16) == 4 * 8 * (16 + 16) * 2
    assert token_bytes(layer_types=["linear_attention"] * 3 + ["full_attention"]) == 8 * 16 * 2
    latent = {"kv_lora_rank": 4, "qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 4}
    assert token_bytes(**latent) == 4 * 8 * (8 + 4) * 2


MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1}
RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **{"head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
        **{"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4},
        **{"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
        "shared_expert_intermediate_size": 16,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 64,
    },
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64, "mamba_d_head": 16},
    "bamba": {**MAMBA, "attn_layer_indices": [2]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "llama": {},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_states_and_layers_without_keys(kind: str, tmp_path: Path) -> None:
    """REAL-2, HYB-7: the cache of each kind, by its config and as transformers has it."""
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    heads = {} if kind == "mamba2" else {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, **sizes, **heads, **RECURRENT[kind])
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        output = model(torch.arange(8)[None], use_cache=True)
    layers = (getattr(output, "past_key_values", None) or output.cache_params).layers
    states = keys = 0
    for layer in layers:
        for name in ("conv_states", "recurrent_states"):
            found = getattr(layer, name, None) or {}
            states += sum(state.nbytes for state in found.values() if state is not None)
        for name in ("keys", "values"):
            tensor = getattr(layer, name, None)
            keys += 0 if tensor is None else tensor.nbytes
    checkpoint = Checkpoint(make_model(tmp_path))
    shape = ModelShape(checkpoint, config.to_dict(), NumberFormat("float32", "float32"))
    assert shape.state_bytes == states
    assert 8 * shape.token_bytes == keys


def test_max_memory_leaves_room_for_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(make_model(tmp_path))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (8 * GIB, 8 * GIB))
    cuda: Any = SimpleNamespace(type="cuda")
    options = HFOptions(device_map="auto")
    limits = placement.max_memory(checkpoint, options, cuda)
    assert limits
    assert limits[0] == limits[1] == 8 * GIB - beside_weights(checkpoint, options) // 2
    assert placement.max_memory(checkpoint, options, torch.device("cpu")) is None
    given = HFOptions(device_map="auto", max_memory={0: 2, "cpu": 4})
    assert placement.max_memory(checkpoint, given, cuda) == {0: 2 * GIB, "cpu": 4 * GIB}


def test_max_memory_reaches_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = make_model(tmp_path), {}
    real = AutoModelForCausalLM.from_pretrained

    def noted(*args: Any, **more: Any) -> Any:
        seen.update(more)
        return real(*args, **more)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
    load(path, device="auto", device_map="auto", max_memory={"cpu": 4})
    assert seen["max_memory"] == {"cpu": 4 * GIB}
    with pytest.raises(ValidationError, match="max_memory needs device_map: auto"):
        HFOptions(max_memory={0: 2})
