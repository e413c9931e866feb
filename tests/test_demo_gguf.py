"""The demo model as GGUF holds what the safetensors hold.

`python -m demo.verify_gguf` compares tokens, logits and texts through llama.cpp itself.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import safe_open

from demo.language_model import extract
from demo.to_gguf import convert
from demo.to_mmproj import convert_mmproj
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.support import DEMO_MODEL, REPOSITORY, SEEING_MODEL, serve

CONFIG: dict[str, Any] = json.loads((DEMO_MODEL / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(SEEING_MODEL, target, "f16")
    return target


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "mmproj-demo.gguf"
    convert_mmproj(SEEING_MODEL, target)
    return target


def interleaved(rows: Any, heads: int) -> Any:
    """Rotary pairs beside each other, as llama.cpp's NORM rope wants them."""
    half = rows.shape[0] // heads // 2
    order = [h * 2 * half + i + s * half for h in range(heads) for i in range(half) for s in (0, 1)]
    return rows[order]


def test_its_card_has_the_context_length(converted: Path) -> None:
    """As one of the hf engine has."""
    for backend, path in (("llamacpp", converted), ("hf", DEMO_MODEL)):
        models = [{"name": "demo", "backend": backend, "path": str(path)}]
        with serve(Config.model_validate({"models": models}), Plugins()) as server:
            parameters = server.http.get("/v1/model").json()["parameters"]
        assert parameters["max_seq_len"] == CONFIG["max_position_embeddings"]


def test_every_weight_is_there(converted: Path) -> None:
    tensors = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(converted).tensors}
    with safe_open(DEMO_MODEL / "model.safetensors", "np") as weights:
        names = list(weights.keys())
        assert len(tensors) == len(names)
        for layer in range(CONFIG["num_hidden_layers"]):
            prefix = f"model.layers.{layer}.self_attn"
            for kind, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
                expected = interleaved(
                    weights.get_tensor(f"{prefix}.{kind}_proj.weight"), CONFIG[heads]
                )
                np.testing.assert_array_equal(tensors[f"blk.{layer}.attn_{kind}.weight"], expected)
            value = weights.get_tensor(f"{prefix}.v_proj.weight")
            np.testing.assert_array_equal(tensors[f"blk.{layer}.attn_v.weight"], value)
        embedding = weights.get_tensor("model.embed_tokens.weight")
        np.testing.assert_array_equal(tensors["token_embd.weight"], embedding)


def test_tokenizer_and_template_come_along(converted: Path) -> None:
    fields = gguf.GGUFReader(converted).fields
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert all(tokens[i] == text for text, i in tokenizer["model"]["vocab"].items())
    template = (DEMO_MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    assert fields["tokenizer.chat_template"].contents() == template
    assert tokens[fields["tokenizer.ggml.eos_token_id"].contents()] == "<|im_end|>"
    assert fields["llama.context_length"].contents() == CONFIG["max_position_embeddings"]


def test_what_sees_is_there(mmproj: Path) -> None:
    """All weights but the norm that LLaVA does not apply, and how pictures are prepared."""
    reader = gguf.GGUFReader(mmproj)
    tensors = {t.name: np.asarray(t.data) for t in reader.tensors}
    with safe_open(SEEING_MODEL / "model.safetensors", "np") as weights:
        names = {name for name in weights.keys() if not name.startswith("language_model.")}  # noqa: SIM118
        assert len(tensors) == len(names) - 2
        patches = weights.get_tensor("vision_tower.vision_model.embeddings.patch_embedding.weight")
        np.testing.assert_array_equal(tensors["v.patch_embd.weight"], patches)
        projector = weights.get_tensor("multi_modal_projector.linear_2.weight")
        np.testing.assert_array_equal(tensors["mm.2.weight"], projector)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    prepared = json.loads((SEEING_MODEL / "processor_config.json").read_text("utf-8"))
    assert fields["clip.vision.image_mean"] == pytest.approx(
        prepared["image_processor"]["image_mean"]
    )
    assert fields["clip.vision.feature_layer"] == [4]  # not the one before, as by default
    assert fields["general.type"] == "mmproj"


def test_the_language_model_alone_is_converted_to_the_same(converted: Path, tmp_path: Path) -> None:
    """`demo.language_model`, and that it overwrites nothing."""
    folder = tmp_path / SEEING_MODEL.name
    extract(SEEING_MODEL, folder)
    convert(folder, tmp_path / "again.gguf", "f16")
    assert (tmp_path / "again.gguf").read_bytes() == converted.read_bytes()
    with pytest.raises(FileExistsError, match="exists already"):
        extract(SEEING_MODEL, folder)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [folder.name]


@pytest.mark.thorough
def test_llama_cpp_agrees_with_transformers(converted: Path) -> None:
    command = [sys.executable, "-m", "demo.verify_gguf", str(DEMO_MODEL), str(converted)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
