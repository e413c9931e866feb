"""A random LoRA adapter for the demo model in PEFT's format, as GGUF, and merged."""

import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support import DEMO_MODEL

RANK, ALPHA = 8, 16
STRENGTH = 0.06
"""Enough to make other text, too little to make two tokens as likely as each other all the time."""

# None that rotary embeddings touch: llama.cpp has the rows of those in another order.
LAYERS = {
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.down_proj": "ffn_down",
}


def make_adapter(folder: Path, target: Path, merged: Path) -> None:
    """Write it to `folder` as PEFT does and to the GGUF file `target`; to `merged` the demo model
    in float32 with it in its weights.
    """
    weights = {name: tensor.float() for name, tensor in load_file(_WEIGHTS).items()}
    pairs = _random_pairs(weights)
    _write_peft(folder, pairs)
    _write_gguf(target, pairs)
    for name, (down, up) in pairs.items():
        weights[f"{name}.weight"] += up @ down * (ALPHA / RANK)
    merged.mkdir()
    for file in DEMO_MODEL.iterdir():
        if file != _WEIGHTS:
            (merged / file.name).write_bytes(file.read_bytes())
    save_file(weights, merged / _WEIGHTS.name, {"format": "pt"})


_WEIGHTS = DEMO_MODEL / "model.safetensors"


def _random_pairs(weights: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Down [rank, inputs] and up [outputs, rank] by layer, with the values of float16."""
    generator = torch.Generator().manual_seed(0)
    pairs = {}
    for name, weight in weights.items():
        if name.removesuffix(".weight").endswith(tuple(LAYERS)):
            outputs, inputs = weight.shape
            down = torch.randn(RANK, inputs, generator=generator) * STRENGTH
            up = torch.randn(outputs, RANK, generator=generator) * STRENGTH
            pairs[name.removesuffix(".weight")] = (down.half().float(), up.half().float())
    return pairs


def _write_peft(folder: Path, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": [name.rpartition(".")[2] for name in LAYERS],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = down.half()
        tensors[f"base_model.model.{name}.lora_B.weight"] = up.half()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def _write_gguf(target: Path, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, (down, up) in pairs.items():
        layer, inner = name.removeprefix("model.layers.").split(".", 1)
        tensor = f"blk.{layer}.{LAYERS[inner]}.weight"
        writer.add_tensor(f"{tensor}.lora_a", down.numpy())
        writer.add_tensor(f"{tensor}.lora_b", up.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
