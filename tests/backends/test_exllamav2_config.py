"""From `config.json` and options to exllamav2's configuration, or to words why not."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from enginebay import BackendUnavailableError
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.options import ExLlamaV2Options
from tests.backends.exllamav2_models import change_config, make_model

pytestmark = pytest.mark.usefixtures("exllamav2_on_cpu")


@pytest.fixture(scope="module")
def saved(exllamav2_on_cpu: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make_model(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A tiny Llama whose `config.json` a test may change."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def configure(folder: Path, **options: Any) -> Any:
    from enginebay_exllamav2.config import library_config

    return library_config(ExLlamaV2Checkpoint(folder), ExLlamaV2Options.model_validate(options))


def refuses(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(BackendUnavailableError, match=message):
        configure(folder, **options)


@pytest.mark.parametrize("names", [["Cohere2ForCausalLM"], ["FutureForCausalLM"], [], None])
def test_unknown_architectures_are_refused_with_a_list(
    folder: Path, names: list[str] | None
) -> None:
    change_config(folder, architectures=names)
    refuses(
        folder, "exllamav2 does not support .*it supports .*LlamaForCausalLM.*use the backend hf"
    )


def test_the_attention_that_looks_ahead_is_never_used(folder: Path) -> None:
    config = configure(folder)
    assert config.no_sdpa
    assert not config.no_flash_attn


DIMENSIONS = [
    ({"head_dim": 12}, "head_dim 12 is not a multiple of 8"),
    ({"head_dim": 264}, "head_dim 264 is not a multiple of 8 up to 256"),
    ({"num_key_value_heads": 3, "head_dim": 32}, "4 attention heads cannot share 3 key/value"),
    ({"num_key_value_heads": 1}, "its keys have 16 dimensions, not a multiple of 32"),
    ({"num_attention_heads": 3, "num_key_value_heads": 3}, "heads together have 48 dimensions"),
    ({"hidden_size": 72}, "hidden_size 72 is not a multiple of 32"),
]


@pytest.mark.parametrize(("changes", "message"), DIMENSIONS)
def test_sizes_that_kernels_cannot_have_are_refused(
    folder: Path, changes: dict[str, int], message: str
) -> None:
    change_config(folder, **changes)
    refuses(folder, f"exllamav2 cannot run it: .*{message}")


@pytest.mark.parametrize("cache_type", ["q8", "q6", "q4"])
def test_quantized_caches_need_whole_groups_in_a_head(folder: Path, cache_type: str) -> None:
    refuses(folder, f"head_dim 16 .* cache_type {cache_type} needs", cache_type=cache_type)


def test_a_config_that_the_library_cannot_read_is_refused(folder: Path) -> None:
    change_config(folder, rms_norm_eps=None)
    refuses(folder, r"exllamav2 0\.3\.2 cannot read it: ValueError: Missing any .*rms_norm_eps")


def test_rope_of_transformers_5_counts(folder: Path) -> None:
    change_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert configure(folder).rotary_embedding_base == 5e5


def test_rope_of_transformers_4_counts(folder: Path) -> None:
    change_config(
        folder,
        rope_parameters=None,
        rope_theta=5e5,
        rope_scaling={"type": "linear", "factor": 4.0},
    )
    config = configure(folder)
    assert (config.rotary_embedding_base, config.scale_pos_emb) == (5e5, 4.0)


def test_rope_that_nobody_computes_is_refused(folder: Path) -> None:
    change_config(folder, rope_parameters={"rope_type": "xpos", "rope_theta": 1e4})
    refuses(folder, "it has RoPE of type 'xpos'.*use the backend hf")


def test_options_go_before_the_rope_of_the_model(folder: Path) -> None:
    change_config(folder, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5})
    config = configure(folder, rope_freq_base=2e4, rope_scale=2)
    assert (config.rotary_embedding_base, config.scale_pos_emb) == (2e4, 2.0)
    config = configure(folder, yarn_factor=4, yarn_orig_ctx=128, context_length=600)
    assert (config.rope.kind, config.scale_pos_emb) == ("yarn", 1.0)
    assert config.rope.settings["original_max_position_embeddings"] == 128
    assert configure(folder, rope_alpha=2.6).rope.alpha == 2.6


def test_contexts_are_as_long_as_the_model_allows(folder: Path) -> None:
    assert configure(folder).rope.context_length == 512
    assert configure(folder, context_length=100).rope.context_length == 100
    refuses(folder, "context_length 513 exceeds the 512 tokens", context_length=513)
    assert configure(folder, context_length=513, rope_alpha=2).rope.context_length == 513


def test_scaling_of_the_model_lets_contexts_be_longer(folder: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    change_config(folder, rope_parameters={**yarn, "rope_theta": 1e4})
    assert configure(folder).rope.context_length == 512
    assert configure(folder, context_length=2048).rope.context_length == 2048
    refuses(folder, "exceeds the 2048 tokens", context_length=2049)


def test_a_window_that_the_library_ignores_limits_the_context(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_config(folder, architectures=["MistralForCausalLM"], sliding_window=128)
    assert configure(folder).rope.context_length == 128
    assert "its sliding window, which exllamav2 does not apply" in caplog.text
    assert configure(folder, context_length=300).rope.context_length == 300
    assert "beyond 128 tokens answers differ" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
        {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"] * 2},
        {"architectures": ["LlamaForCausalLM"]},
    ],
)
def test_a_window_that_the_model_does_not_use_limits_nothing(
    folder: Path, changes: dict[str, Any]
) -> None:
    change_config(folder, sliding_window=128, **changes)
    assert configure(folder).rope.context_length == 512


def test_experts_can_be_more_or_fewer(folder: Path) -> None:
    refuses(folder, "experts_per_token is 3, but the model has no experts", experts_per_token=3)
    make_model(folder, "mixtral", num_local_experts=4, num_experts_per_tok=2)
    assert configure(folder).num_experts_per_token == 2
    assert configure(folder, experts_per_token=3).num_experts_per_token == 3
    refuses(folder, "experts_per_token is 5, but the model has 4 experts", experts_per_token=5)


def test_windows_of_layers_are_those_that_the_config_names(folder: Path) -> None:
    layers = ["sliding_attention", "sliding_attention", "full_attention"]
    make_model(folder, "gemma2", sliding_window=16, num_hidden_layers=3, query_pre_attn_scalar=16)
    change_config(folder, layer_types=layers)
    config = configure(folder)
    assert config.sliding_window_pattern == 3
    assert config.sliding_window == 15  # tokens before a query, which itself is the sixteenth
    change_config(folder, layer_types=layers[::-1])
    refuses(folder, "cannot apply sliding windows to the layers named by its layer_types")


@pytest.mark.parametrize(
    ("options", "input_tokens"),
    [
        ({}, 2048),
        ({"prefill_tokens": 256}, 256),
        ({"prefill_tokens": 256, "max_batch_size": 100}, 1024),
    ],
)
def test_a_pass_has_room_for_prompts_and_for_all_choices(
    folder: Path, options: dict[str, int], input_tokens: int
) -> None:
    config = configure(folder, **options)
    assert config.max_input_len == input_tokens
    assert config.max_input_len % 256 == 0
    assert config.max_seq_len >= max(config.max_input_len, 512 + 8)
