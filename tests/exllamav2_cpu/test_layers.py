"""Tiny models whose layers need more than Llama's: ExLlamaV2's logits against transformers'."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("Qwen2Config", {}),  # biases
        ("Qwen3Config", {"head_dim": 32}),  # RMS norms of heads
        ("Gemma2Config", {"head_dim": 32, "query_pre_attn_scalar": 32}),  # soft caps
        ("CohereConfig", {"use_qk_norm": True}),  # layer norms of heads, rotation of neighbours
    ],
)
def test_logits_are_those_of_transformers(
    exllamav2_on_cpu: ModuleType, tmp_path: Path, config: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**TINY, **options)
    reference = transformers.AutoModelForCausalLM.from_config(settings)
    for parameter in reference.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    reference.half().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["rope_theta"] = saved["rope_parameters"]["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(saved))

    library = exllamav2_on_cpu
    settings = library.ExLlamaV2Config(str(tmp_path))
    settings.no_sdpa = True
    settings.max_input_len = 256
    if config == "Qwen3Config":
        settings.arch.lm.headnorm = "rmsnorm"  # 0.3.2 takes them for layer norms
    model = library.ExLlamaV2(settings)
    model.load()
    cache = library.ExLlamaV2Cache(model, max_seq_len=256)
    ids = torch.randint(3, 96, (1, 40))
    with torch.inference_mode():
        expected = reference.float()(ids).logits
        logits = model.forward(ids, cache)[..., :96].float()
    assert (logits - expected).abs().max() < 0.02 * expected.std()
