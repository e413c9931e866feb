"""Models loaded by exllamav2's own code, over stand-ins for its CUDA functions, on a CPU."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from enginebay import BackendUnavailableError
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.options import ExLlamaV2Options
from tests.backends.exllamav2_models import change_config, generate, load, make_model, reference
from tests.effort import some
from tests.support import DEMO_MODEL

PROMPT = [(i * 37 + 11) % 300 + 5 for i in range(60)]
# The tokenizer of tiny models has fewer tokens than their vocabulary; exllamav2 bans the others.
KNOWN = 307


@pytest.fixture(autouse=True)
def library(exllamav2_on_cpu: ModuleType) -> Iterator[None]:
    """The library without what a model's attention changes in it."""
    from enginebay_exllamav2.library import attention

    with pytest.MonkeyPatch.context() as patch:
        for name in ("", "_with_paged", "_with_window", "_with_softcap"):
            patch.setattr(attention, f"has_flash_attn{name}", False)
        patch.setattr(attention, "flash_attn_with_kvcache", None, raising=False)
        yield


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, make_model(folder, head_dim=32)


def divergence(
    loaded: Any, model: PreTrainedModel, prompt: list[int] = PROMPT, **job: Any
) -> float:
    """The largest KL divergence of greedy tokens' distributions from transformers'."""
    token_ids, logprobs = generate(loaded, prompt, 8, **job)
    expected = reference(model, prompt, token_ids)
    ours, theirs = (each[:, :KNOWN].log_softmax(-1) for each in (logprobs, expected))
    return float((theirs.exp() * (theirs - ours)).sum(-1).max())


ROPE = {"rope_theta": 1e4, "original_max_position_embeddings": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                **ROPE,
            }
        },
    ),
    "yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, **ROPE}}),
    "linear": (
        "mistral",
        {
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4},
            "sliding_window": None,
        },
    ),
    "longrope": (
        "phi3",
        {
            "sliding_window": None,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "long_factor": [1.0 + i / 4 for i in range(8)],
                "short_factor": [1.0] * 8,
                **ROPE,
            },
        },
    ),
    "tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gemma2": (
        "gemma2",
        {"sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 3},
    ),
    "gemma": ("gemma", {}),
    "cohere": ("cohere", {}),
    "granite": ("granite", {}),
    "glm4": ("glm4", {}),  # a part of each head rotates
}


@pytest.mark.parametrize("family", some(FAMILIES, ("tied", "qwen3_moe", "gemma2", "glm4")))
def test_a_model_says_what_transformers_says(family: str, tmp_path: Path) -> None:
    model_type, changes = FAMILIES[family]
    model = make_model(tmp_path, model_type, **changes)
    loaded = load(tmp_path, max_batch_size=2)
    assert divergence(loaded, model) < 1e-3
    loaded.close()


def test_one_after_another_it_says_the_same(llama: tuple[Path, PreTrainedModel]) -> None:
    folder, model = llama
    loaded = load(folder, paged=False)
    assert (loaded.paged, loaded.max_batch_size, loaded.cache_tokens) == (False, 1, 512)
    assert divergence(loaded, model) < 1e-3


@pytest.mark.parametrize(
    ("cache_type", "most"), [("f16", 1e-3), ("q8", 5e-3), ("q6", 0.2), ("q4", 0.5)]
)
def test_caches_of_every_type(
    cache_type: str, most: float, llama: tuple[Path, PreTrainedModel]
) -> None:
    folder, model = llama
    loaded = load(folder, cache_type=cache_type, cache_tokens=1000)
    assert loaded.cache_tokens == loaded.cache.max_seq_len == 1024
    assert divergence(loaded, model) < most


def test_prompts_longer_than_a_pass(llama: tuple[Path, PreTrainedModel]) -> None:
    folder, model = llama
    loaded = load(folder, prefill_tokens=256, max_batch_size=100)
    prompt = [(i * i * 37 + i * 11) % 300 + 5 for i in range(360)]
    assert divergence(loaded, model, prompt) < 1e-2


@pytest.mark.parametrize("tokens", [1, 7])
def test_guessing_changes_nothing(tokens: int, llama: tuple[Path, PreTrainedModel]) -> None:
    folder, _ = llama
    alone, _ = generate(load(folder), PROMPT, 24)
    looked_up = load(folder, prompt_lookup=tokens)
    assert looked_up.draft_tokens == tokens
    assert generate(looked_up, PROMPT, 24)[0] == alone
    drafted = load(folder, draft_model=".", draft_tokens=tokens, draft_cache_type="q8")
    assert drafted.draft_cache.max_seq_len == drafted.cache.max_seq_len
    assert generate(drafted, PROMPT, 24)[0] == alone


def test_guessed_tokens_have_room_behind_the_longest_context(
    llama: tuple[Path, PreTrainedModel],
) -> None:
    folder, _ = llama
    loaded = load(folder, paged=False, prompt_lookup=7)
    assert (loaded.context_length, loaded.cache_tokens) == (512, 768)
    loaded = load(folder, cache_tokens=512, context_length=512, prompt_lookup=7)
    assert (loaded.context_length, loaded.cache_tokens) == (505, 512)
    prompt = (PROMPT * 9)[:500]
    assert len(generate(loaded, prompt, 5)[0]) == 5


def test_a_draft_model_must_have_the_same_vocabulary(llama: tuple[Path, PreTrainedModel]) -> None:
    folder, _ = llama
    with pytest.raises(BackendUnavailableError, match="its vocabulary differs from") as error:
        load(folder, draft_model=str(DEMO_MODEL))
    assert str(DEMO_MODEL) in error.value.message


def test_a_draft_model_is_checked_like_any_other(
    llama: tuple[Path, PreTrainedModel], tmp_path: Path
) -> None:
    folder, _ = llama
    with pytest.raises(BackendUnavailableError, match="there is no such folder"):
        load(folder, draft_model="nowhere")
    make_model(tmp_path)
    change_config(tmp_path, architectures=["FutureForCausalLM"])
    with pytest.raises(BackendUnavailableError, match="does not support FutureForCausalLM"):
        load(folder, draft_model=str(tmp_path))


def test_a_draft_model_may_be_made_for_shorter_contexts(
    llama: tuple[Path, PreTrainedModel], tmp_path: Path
) -> None:
    folder, _ = llama
    make_model(tmp_path, max_position_embeddings=64)
    loaded = load(folder, draft_model=str(tmp_path), draft_rope_alpha=4)
    assert loaded.context_length == 512
    assert generate(loaded, PROMPT, 8)[0] == generate(load(folder), PROMPT, 8)[0]


ADAPTER = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}


class TestAdapters:
    """LoRA from PEFT folders."""

    def write(self, folder: Path, model: PreTrainedModel, **config: Any) -> dict[str, torch.Tensor]:
        """A random adapter; what it adds to each weight of the model."""
        torch.manual_seed(3)
        tensors, added = {}, {}
        for layer in ("self_attn.q_proj", "mlp.down_proj"):
            name = f"model.layers.1.{layer}"
            rows, columns = model.get_submodule(name).weight.shape
            down, up = torch.randn(4, columns) * 0.2, torch.randn(rows, 4) * 0.2
            tensors[f"base_model.model.{name}.lora_A.weight"] = down
            tensors[f"base_model.model.{name}.lora_B.weight"] = up
            added[name] = up @ down * (8 / 4)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({**ADAPTER, **config}))
        return added

    @pytest.mark.parametrize("scale", [1.0, 0.5])
    def test_its_product_is_added(self, scale: float, tmp_path: Path) -> None:
        base, adapter = tmp_path / "base", tmp_path / "adapter"
        adapter.mkdir()
        model = make_model(base)
        added = self.write(adapter, model)
        loaded = load(base, adapters={"pirate": {"path": "../adapter", "scale": scale}})
        assert loaded.adapters.names == ("pirate",)
        assert divergence(loaded, model) < 1e-3
        for name, product in added.items():
            model.get_submodule(name).weight.data += product * scale
        assert divergence(loaded, model) > 1e-2
        assert divergence(loaded, model, loras=loaded.adapters["pirate"]) < 1e-3

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"use_dora": True}, "use_dora is not supported; merge the adapter"),
            ({"fan_in_fan_out": True}, "fan_in_fan_out is not supported"),
            ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern is not supported"),
            ({"bias": "all"}, "bias: all is not supported"),
            ({"peft_type": "IA3"}, "its peft_type is 'IA3', not LORA"),
        ],
    )
    def test_what_it_cannot_be(
        self,
        config: dict[str, Any],
        message: str,
        llama: tuple[Path, PreTrainedModel],
        tmp_path: Path,
    ) -> None:
        folder, model = llama
        self.write(tmp_path, model, **config)
        with pytest.raises(BackendUnavailableError, match=rf"adapter 'pirate' \(.*{message}"):
            load(folder, adapters={"pirate": str(tmp_path)})

    def test_one_made_for_another_model(
        self, llama: tuple[Path, PreTrainedModel], tmp_path: Path
    ) -> None:
        folder, model = llama
        self.write(tmp_path, model)
        file = tmp_path / "adapter_model.safetensors"
        prefix = "base_model.model.model.layers"
        for tensors, message in (
            ({f"{prefix}.9.self_attn.q_proj.lora_A.weight": (4, 64)}, "made for another"),
            ({f"{prefix}.0.self_attn.q_proj.lora_A.weight": (4, 32)}, "incompatible tensor shape"),
            ({"base_model.model.lm_head.lora_A.weight": (4, 64)}, "unsupported layer"),
        ):
            save_file({name: torch.zeros(size) for name, size in tensors.items()}, file)
            with pytest.raises(BackendUnavailableError, match=message):
                load(folder, adapters={"pirate": str(tmp_path)})
        file.unlink()
        with pytest.raises(BackendUnavailableError, match=r"no adapter_model\.safetensors"):
            load(folder, adapters={"pirate": str(tmp_path)})


def test_progress_is_reported_layer_by_layer(llama: tuple[Path, PreTrainedModel]) -> None:
    folder, _ = llama
    said: list[tuple[str, float]] = []
    load(folder, lambda stage, fraction: said.append((stage, fraction)))
    fractions = [fraction for _, fraction in said]
    assert {stage for stage, _ in said} == {f"loading {folder.name}"}
    assert len(said) > 4
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (pytest.approx(0.05), pytest.approx(0.95))


def test_closing_lets_go_of_everything(llama: tuple[Path, PreTrainedModel]) -> None:
    loaded = load(llama[0], draft_model=".")
    models = [loaded.model, loaded.draft_model]
    assert all(model.modules for model in models)
    loaded.close()
    assert not any(model.modules for model in models)
    assert loaded.cache is loaded.draft_cache is loaded.tokenizer is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "there is not enough memory for its weights",
        ),
        (RuntimeError("Insufficient VRAM for model and cache"), "there is not enough memory"),
        (AssertionError("Insufficient space in device allocation"), "there is not enough memory"),
        (ValueError("bad tensor"), "exllamav2 cannot load it: ValueError: bad tensor"),
    ],
)
def test_what_fails_on_the_way_is_said_and_dropped(
    error: Exception,
    message: str,
    llama: tuple[Path, PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from enginebay_exllamav2.library import exllamav2

    unloaded: list[Any] = []

    class Failing(exllamav2.ExLlamaV2):  # type: ignore[misc]
        def load(self, *arguments: Any, **named: Any) -> None:
            super().load(*arguments, **named)
            if len(built) == 2:
                raise error

        def unload(self) -> None:
            super().unload()
            unloaded.append(self)

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            built.append(self)

    built: list[Any] = []
    monkeypatch.setattr(exllamav2, "ExLlamaV2", Failing)
    with pytest.raises(BackendUnavailableError, match=message):
        load(llama[0], draft_model=".")
    assert set(unloaded) == set(built)


def test_a_model_of_one_gpu_is_split_over_no_two(llama: tuple[Path, PreTrainedModel]) -> None:
    with pytest.raises(BackendUnavailableError, match="gpu_split lists 2 GPUs, but torch sees"):
        load(llama[0], gpu_split=[20, 24])


@pytest.mark.thorough
def test_several_gpus_are_filled_one_after_the_other(
    llama: tuple[Path, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    from enginebay_exllamav2.library import exllamav2

    reserved: list[list[int] | None] = []

    class Split(exllamav2.ExLlamaV2):  # type: ignore[misc]
        def load_autosplit(self, cache: Any, reserve_vram: Any, **named: Any) -> None:
            reserved.append(reserve_vram)
            super().load_autosplit(cache, reserve_vram, **named)

    folder, model = llama
    monkeypatch.setattr(exllamav2, "ExLlamaV2", Split)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, 2**30))
    loaded = load(folder, autosplit_reserve=[1.5], draft_model=".")
    assert reserved == [[3 * 2**19, 0]] * 2
    assert divergence(load(folder), model) < 1e-3
    assert reserved[-1] is None
    loaded.close()


PARALLEL: list[tuple[dict[str, Any], str]] = [
    ({"count": 1}, "needs several GPUs, but torch sees 1"),
    ({"weights": "plain"}, "needs EXL2 weights"),
    ({"supports_tp": False}, "needs an architecture other than LlamaForCausalLM"),
    ({"use_qk_norm": True}, "needs a model without query and key norms"),
    ({"is_moe": True}, "needs a model without experts"),
    ({"intermediate_size": 1000}, "needs an intermediate_size that is a multiple of 128"),
    ({"adapters": {"pirate": "pirate"}}, "needs a model without adapters"),
    ({"paged": False}, "needs paged: true"),
]


@pytest.mark.parametrize(("lacking", "message"), PARALLEL)
def test_what_tensor_parallel_needs(
    lacking: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from enginebay_exllamav2.weights import check_gpus

    def check(count: int = 2, **changes: Any) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        named = {"supports_tp": True, "is_moe": False, "use_qk_norm": False, **changes}
        named = {"intermediate_size": 14336, "architecture": "LlamaForCausalLM", **named}
        config = SimpleNamespace(**named, arch=SimpleNamespace(lm=SimpleNamespace(**named)))
        options = {key: changes[key] for key in ("adapters", "paged") if key in changes}
        checkpoint = SimpleNamespace(
            weights=changes.get("weights", "exl2"), unavailable=BackendUnavailableError
        )
        given = ExLlamaV2Options(tensor_parallel=True, **options)
        check_gpus(cast(ExLlamaV2Checkpoint, checkpoint), given, config)

    check()
    with pytest.raises(BackendUnavailableError, match=f"tensor_parallel {message}"):
        check(**lacking)


def test_a_split_of_ones_own_is_kept(llama: tuple[Path, PreTrainedModel]) -> None:
    folder, model = llama
    assert divergence(load(folder, gpu_split=[4]), model) < 1e-3
    with pytest.raises(BackendUnavailableError, match="there is not enough memory"):
        load(folder, gpu_split=[0.0001])


def test_without_flash_attention_it_is_said_which_is_used(
    llama: tuple[Path, PreTrainedModel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    load(llama[0])
    assert "using torch attention because flash-attn 2.5.7 or later is not installed" in caplog.text
    assert "KV cache of 8192 tokens (f16)" in caplog.text
    with pytest.raises(BackendUnavailableError, match="flash_attention is on, but flash-attn"):
        load(llama[0], flash_attention="on")


def test_flash_attention_is_used_where_it_is(
    llama: tuple[Path, PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from enginebay_exllamav2.library import attention
    from enginebay_exllamav2.paged_attention import paged_attention

    theirs = object()
    caplog.set_level("INFO")
    monkeypatch.setattr(attention, "has_flash_attn", True)
    monkeypatch.setattr(attention, "has_flash_attn_with_paged", True)
    monkeypatch.setattr(attention, "flash_attn_with_kvcache", theirs)
    load(llama[0], flash_attention="on")
    assert attention.flash_attn_with_kvcache is theirs
    assert "using flash-attn" in caplog.text
    load(llama[0], flash_attention="off")
    assert attention.flash_attn_with_kvcache is paged_attention


def test_sliding_windows_need_pages_or_flash_attention(tmp_path: Path) -> None:
    model_type, changes = FAMILIES["gemma2"]
    make_model(tmp_path, model_type, **changes)
    with pytest.raises(BackendUnavailableError, match="windows need a paged cache or flash-attn"):
        load(tmp_path, paged=False)


def test_torch_computes_with_as_many_threads_as_before(exllamav2_on_cpu: ModuleType) -> None:
    from enginebay_exllamav2 import library

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        library._import_library()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("line", "left_out"),
    [("raise ImportError('undefined symbol')", True), ("__version__ = '2.8.3'", False)],
)
def test_a_flash_attention_that_does_not_import_is_left_out(
    line: str,
    left_out: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from enginebay_exllamav2.library import leave_broken_flash_attention

    (tmp_path / "flash_attn.py").write_text(line)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, "flash_attn", sys)  # so that its import is undone
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.setenv("EXLLAMA_NO_FLASH_ATTN", "")
    leave_broken_flash_attention()
    assert (os.environ["EXLLAMA_NO_FLASH_ATTN"] == "1") == left_out
    assert ("flash-attn cannot be imported" in caplog.text) == left_out
