"""What a GGUF model takes of memory: by its header, and by llama.cpp's own account."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    FreeMemory,
    GgufTensor,
    MemoryEstimate,
)
from enginebay_llamacpp.estimate import estimated
from enginebay_llamacpp.memory import layout, placed
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.shape import ModelShape
from tests.backends.gguf_models import (
    CONTEXT,
    LAYERS,
    WIDTH,
    write_bert,
    write_hybrid,
    write_llama,
    write_moe,
    write_recurrent,
)
from tests.backends.llamacpp import load, refusal, request
from tests.run import Run

GIB, MIB = 2**30, 2**20
BUFFER = re.compile(r"CPU\w* +(model|output|KV|RS|compute) buffer size = +([\d.]+) MiB")


def estimate(path: Path, free: FreeMemory | None = None, **options: Any) -> MemoryEstimate:
    settings = BackendSettings(
        name="m", path=str(path), base=str(path.parent), options=LlamaCppOptions(**options)
    )
    return estimated(settings, free or FreeMemory(20 * GIB))


def taken(estimate: MemoryEstimate) -> dict[str, int]:
    return {part.name: part.ram + part.gpu for part in estimate.parts}


@pytest.mark.parametrize(
    "options",
    [
        {"kv_unified": True},
        {"kv_unified": False},
        {"context_length": 256, "max_batch_size": 4, "kv_unified": True},
        {
            "cache_type_k": "q8_0",
            "cache_type_v": "q8_0",
            "cache_tokens": 4096,
            "kv_unified": True,
        },
        {
            "ubatch_tokens": 64,
            "prompt_lookup": 4,
            "max_batch_size": 2,
            "cache_tokens": 8192,
            "kv_unified": True,
        },
    ],
    ids=["unified", "separate", "small", "q8", "drafts"],
)
def test_the_estimate_is_llama_cpps_own_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    path = write_llama(tmp_path / "model.gguf")
    with caplog.at_level(logging.DEBUG, "enginebay_llamacpp.library"):
        load(path, repack=False, **options)
    sizes = {kind: float(size) * 2**20 for kind, size in BUFFER.findall(caplog.text)}
    parts = taken(estimate(path, repack=False, **options))
    rounding = 0.01 * 2**20
    assert parts["weights"] == pytest.approx(sizes["model"], abs=rounding)
    assert parts["kv_cache"] == pytest.approx(sizes["KV"], abs=rounding)
    buffers = sizes["output"] + sizes["compute"]
    assert parts["buffers"] == pytest.approx(buffers, abs=0.3 * 2**20)  # of 2 MiB


@pytest.mark.parametrize("write", [write_hybrid, write_recurrent], ids=["hybrid", "recurrent"])
def test_recurrent_states_and_the_other_layers_keys_count(
    write: Callable[[Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # HYB-7
    path = write(tmp_path / "model.gguf")
    options = {"max_batch_size": 64, "kv_unified": True, "cache_tokens": 8192}
    with caplog.at_level(logging.DEBUG, "enginebay_llamacpp.library"):
        load(path, **options)
    sizes = {kind: float(size) * 2**20 for kind, size in BUFFER.findall(caplog.text)}
    parts = taken(estimate(path, **options))
    rounding = 0.01 * 2**20
    assert parts["recurrent_states"] == pytest.approx(sizes["RS"], abs=rounding)
    assert parts["recurrent_states"] > rounding
    assert parts["kv_cache"] == pytest.approx(sizes.get("KV", 0), abs=rounding)


def test_kinds_with_one_number_of_heads_have_keys_in_some_layers() -> None:
    # HYB-7: Qwen3.5 27B has 16 layers of attention and 48 with a state of 149.6 MiB in all
    layers = range(64)
    names = [f"blk.{i}.attn_k.weight" if i % 4 == 3 else f"blk.{i}.ssm_a" for i in layers]
    values = {
        "general.architecture": "qwen35",
        "qwen35.block_count": 64,
        "qwen35.embedding_length": 5120,
        "qwen35.attention.head_count": 24,
        "qwen35.attention.head_count_kv": 4,
        "qwen35.attention.key_length": 256,
        "qwen35.attention.value_length": 256,
        "qwen35.ssm.conv_kernel": 4,
        "qwen35.ssm.inner_size": 48 * 128,
        "qwen35.ssm.state_size": 128,
        "qwen35.ssm.group_count": 16,
    }
    tensors = [GgufTensor(name, (1,), 0, 4) for name in names]
    shape = ModelShape(Path("m.gguf"), values, 1000, tensors)
    keys = shape.cache_bytes("f16", "f16")
    assert sum(keys) == 16 * 4 * 512 * 2
    assert keys[:4] == [0, 0, 0, 4 * 512 * 2]
    assert sum(shape.state_bytes()) / 2**20 == pytest.approx(149.626, abs=0.01)


def test_states_that_leave_no_room_make_fewer_sequences(tmp_path: Path) -> None:
    path = write_recurrent(tmp_path / "model.gguf")
    roomy, tight = estimate(path), estimate(path, FreeMemory(2 * MIB))
    each = taken(roomy)["recurrent_states"] // 16
    assert 0 < taken(tight)["recurrent_states"] <= 2 * MIB // 8
    assert taken(estimate(path, FreeMemory(0)))["recurrent_states"] == each
    asked = estimate(path, FreeMemory(0), max_batch_size=16)
    assert taken(asked)["recurrent_states"] == 16 * each


def test_a_model_chooses_at_its_load_what_was_estimated(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    assert load(path).info.context_length == estimate(path).context_length == CONTEXT
    assert estimate(path, FreeMemory(0)).context_length == 256
    assert estimate(path, FreeMemory(0)).short
    assert estimate(path, FreeMemory(0), context_length=400).context_length == 400


def test_what_is_not_needed_is_not_counted(tmp_path: Path) -> None:
    assert taken(estimate(write_bert(tmp_path / "bert.gguf")))["kv_cache"] == 0
    assert taken(estimate(write_recurrent(tmp_path / "mamba.gguf")))["kv_cache"] == 0


def test_the_least_is_without_the_mapped_file(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    weights = taken(estimate(path))["weights"]
    assert estimate(path).mapped == weights
    assert estimate(path, mmap=False).mapped == 0
    assert estimate(path).least.ram < estimate(path).total.ram


def test_a_draft_model_and_adapters_count(tmp_path: Path) -> None:
    path, draft = write_llama(tmp_path / "m.gguf"), write_llama(tmp_path / "d.gguf", seed=1)
    parts = taken(estimate(path, draft_model=str(draft), adapters={"a": str(draft)}))
    assert parts["draft_model"] > taken(estimate(draft))["weights"]
    assert parts["adapters"] == draft.stat().st_size


# Layers on the GPU.  ENG-2


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    return ModelShape.of(write_moe(tmp_path_factory.mktemp("moe") / "model.gguf"))


def chosen(shape: ModelShape, free_gpu: int | None, **options: Any) -> int:
    return placed(shape, LlamaCppOptions(**options), free_gpu).gpu_layers


def test_auto_puts_all_layers_on_the_gpu_if_they_fit(large: ModelShape) -> None:
    assert chosen(large, 8 * GIB) == LAYERS + 1
    assert chosen(large, None) == 0
    assert chosen(large, 0) == 0
    assert chosen(large, 1 * GIB, gpu_layers="all") == LAYERS + 1
    assert chosen(large, 8 * GIB, gpu_layers=1) == 1


def test_auto_leaves_room_for_the_cache_that_was_asked_for(large: ModelShape) -> None:
    """Each byte less of free memory takes layers away, and so does a longer context."""
    options = {"max_batch_size": 1, "ubatch_tokens": 16}
    whole = next(f for f in range(256 << 20, 300 << 20, 4096) if chosen(large, f, **options) == 3)
    assert chosen(large, whole - 4096, **options) in (1, 2)
    counts = [chosen(large, free, **options) for free in range(256 << 20, whole + 1, 4096)]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}
    assert chosen(large, whole, cache_tokens=4096, **options) < 3
    everything = layout(large, LlamaCppOptions(), 3)
    assert everything.gpu + everything.gpu_token * CONTEXT < whole


def test_the_output_is_the_first_layer_on_the_gpu(large: ModelShape) -> None:
    one = layout(large, LlamaCppOptions(), 1)
    assert one.gpu == large.embedding_bytes + 4 * WIDTH  # tied, and the last norm
    assert one.gpu_token == 0
    both = layout(large, LlamaCppOptions(), 2)
    assert both.gpu_token == both.ram_token > 0


def test_the_estimate_says_what_auto_chose(tmp_path: Path) -> None:
    path = write_moe(tmp_path / "model.gguf")
    roomy = estimate(path, FreeMemory(8 * GIB, 8 * GIB))
    assert (roomy.gpu_layers, roomy.layers, roomy.short) == (3, 3, False)
    assert roomy.total.gpu > layout(ModelShape.of(path), LlamaCppOptions(), 3).gpu
    full = estimate(path, FreeMemory(8 * GIB, 100 << 20))
    assert (full.gpu_layers, full.short) == (0, True)
    assert estimate(path, FreeMemory(8 * GIB)).gpu_layers is None


# Experts in RAM.  ENG-1


def test_experts_and_named_tensors_go_where_they_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_moe(tmp_path / "model.gguf")
    plain = Run(load(path), request([5, 6, 7], max_tokens=8)).finish()
    with caplog.at_level(logging.DEBUG, "enginebay_llamacpp.library"):
        engine = load(path, cpu_moe_layers=1, override_tensor=r"blk\.1\.attn_(q|k)=CPU")
    found = set(re.findall(r"tensor (\S+) .*buffer type overridden to CPU", caplog.text))
    experts = {f"blk.0.ffn_{name}_exps.weight" for name in ("gate", "up", "down")}
    assert found == {*experts, "blk.1.attn_q.weight", "blk.1.attn_k.weight"}
    again = Run(engine, request([5, 6, 7], max_tokens=8)).finish()
    assert again.token_ids() == plain.token_ids()
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "enginebay_llamacpp.library"):
        load(path, cpu_moe_layers="all")
    assert len(re.findall("buffer type overridden to CPU", caplog.text)) == 3 * LAYERS


def test_experts_in_ram_leave_room_for_layers(large: ModelShape) -> None:
    plain = layout(large, LlamaCppOptions(), 3)
    for options, layers in (({"cpu_moe_layers": "all"}, 2), ({"cpu_moe_layers": 1}, 1)):
        there = layout(large, LlamaCppOptions(**options), 3)
        experts = 3 * 4 * 4 * WIDTH * WIDTH
        assert plain.gpu - there.gpu == layers * experts == there.ram - plain.ram
    named = layout(large, LlamaCppOptions(override_tensor=["attn_q=CPU", "exps=CUDA0"]), 3)
    assert plain.gpu - named.gpu == 2 * 4 * WIDTH * WIDTH


def test_override_tensor_that_is_wrong(tmp_path: Path) -> None:
    problem = refusal(write_moe(tmp_path / "m.gguf"), override_tensor="exps=CUDA7")
    assert "'CUDA7'" in problem
    assert "this llama-cpp-python has CPU" in problem
    for wrong, told in (("exps", "REGEX=BUFFER TYPE"), ("(=CPU", "no regular expression")):
        with pytest.raises(ValidationError, match=told):
            LlamaCppOptions(override_tensor=wrong)


def test_a_damaged_header(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\xff" * 40)
    with pytest.raises(BackendUnavailableError, match="corrupt or incomplete"):
        estimate(tmp_path / "m.gguf")
