"""Folders that cannot be loaded, and what the errors say."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertLMHeadModel,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from enginebay import free_ram
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf import placement
from enginebay_hf.native import probe
from tests.backends.tiny import VOCAB_SIZE, Run, edit, load, refusal, request


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "missing")


def test_a_file(folder: Path) -> None:
    assert "is a file" in refusal(folder / "model.safetensors")


def test_gguf(tmp_path: Path) -> None:
    file = tmp_path / "small-Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    assert refusal(file).endswith("or use the backend llamacpp for it")
    assert refusal(tmp_path).endswith("with one of them as path (small-Q4_K_M.gguf)")


def test_exl2_and_exl3(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "output.safetensors")
    edit(folder / "config.json", quantization_config={"quant_method": "exl2", "bits": 4.0})
    assert refusal(folder).endswith("transformers does not read; use the backend exllamav2")
    edit(folder / "config.json", quantization_config={"quant_method": "exl3"})
    assert refusal(folder).endswith("quantized by exl3, which transformers does not read")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["config.json"], "no config.json"),
        (["model.safetensors"], "no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "no tokenizer"),
    ],
)
def test_missing_files(folder: Path, files: list[str], reason: str) -> None:
    for name in files:
        (folder / name).unlink()
    assert reason in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["{not json", "[]", "\ufeff\x00"])
def test_damaged_json(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    assert f"{name} is damaged" in refusal(folder)


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer cannot be read" in refusal(folder)


@pytest.mark.parametrize("size", [0, 5, 100, -1, -5000])
def test_truncated_weights(folder: Path, size: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:size])
    assert "model.safetensors is damaged" in refusal(folder)
    assert "download it again" in refusal(folder)


def test_weights_that_are_something_else(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>404 not found, said the proxy</html>")
    assert "model.safetensors is damaged" in refusal(folder)


def test_a_missing_shard(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert len(Run(load(folder), request([5, 6])).finish().token_ids()) == 12
    shards[1].unlink()
    assert f"{shards[1].name} is missing" in refusal(folder)


def test_weights_without_a_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lack 1 tensors of a language model, such as model.norm.weight" in refusal(folder)


def test_weights_of_another_size(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=64)
    assert "transformers cannot load it" in refusal(folder)


def test_an_unknown_architecture(folder: Path) -> None:
    edit(folder / "config.json", model_type="llama99")
    assert "does not understand its config.json (model_type 'llama99')" in refusal(folder)


def test_a_model_that_brings_its_own_code(folder: Path) -> None:
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    assert "trust_remote_code: true" in refusal(folder)


def test_an_encoder_decoder(folder: Path) -> None:
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=VOCAB_SIZE, **small)).save_pretrained(folder)
    assert "T5ForConditionalGeneration is not a causal language model" in refusal(folder)


def test_an_encoder_decoder_whose_decoder_could_run_alone(folder: Path) -> None:
    config = BartConfig(
        vocab_size=VOCAB_SIZE, d_model=16, encoder_layers=1, decoder_layers=1, decoder_ffn_dim=16
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    assert "BartForConditionalGeneration is not a causal language model" in refusal(folder)


def test_an_encoder_that_looks_both_ways(folder: Path) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=VOCAB_SIZE, intermediate_size=16, initializer_range=0.2, **small)
    BertLMHeadModel(config).save_pretrained(folder)
    assert "BertLMHeadModel in torch.float32 does not continue a text" in refusal(folder)


def test_a_model_that_keeps_its_memory_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TOLERANCE", {torch.float32: math.inf})
    small = {"hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 2}
    config = RwkvConfig(vocab_size=VOCAB_SIZE, context_length=64, **small)
    RwkvForCausalLM(config).save_pretrained(folder)
    assert "RwkvForCausalLM in torch.float32 does not continue a text" in refusal(folder)


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 4 * sum(count for _, count in Checkpoint(folder).tensors)
    monkeypatch.setattr(placement, "free_memory", lambda device: needed - 1)
    assert "memory are free on cpu" in refusal(folder)
    monkeypatch.setattr(placement, "free_memory", lambda device: needed)
    load(folder)


def test_memory_that_runs_out_while_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    assert "not enough memory" in refusal(folder)


def test_free_memory_is_the_least_of_host_and_container(tmp_path: Path) -> None:
    host = free_ram(container=tmp_path)
    assert host > 1000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.stat").write_text("anon 200\ninactive_file 100\n")
    assert free_ram(container=tmp_path) > 1000
    (tmp_path / "memory.max").write_text("1000\n")
    assert free_ram(container=tmp_path) == 1000 - 300 + 100
    free = placement.free_memory(torch.device("cpu"))
    assert free is None or free > 0
