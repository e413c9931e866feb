"""Convert the tower and the projector of a LLaVA folder to GGUF for llama.cpp's mtmd.

`demo.to_gguf --mmproj` writes it beside the language model. The format is that of llama.cpp's
`tools/mtmd/clip-impl.h` with `projector_type: mlp`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import LlamaFileType
from safetensors.numpy import load_file

_TOWER = "vision_tower.vision_model."
_OUTER_NAMES = {
    f"{_TOWER}embeddings.patch_embedding": "v.patch_embd",
    f"{_TOWER}embeddings.position_embedding": "v.position_embd",
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
}
_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


@contextmanager
def open_writer(target: Path, architecture: str) -> Iterator[gguf.GGUFWriter]:
    """A GGUF file that appears only when it is complete."""
    unfinished = target.with_name(target.name + ".tmp")
    writer = gguf.GGUFWriter(unfinished, architecture)
    try:
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any], pictures: dict[str, Any]) -> None:
    tower = config["vision_config"]
    if tower["hidden_act"] != "gelu_pytorch_tanh" or config["vision_feature_layer"] != -1:
        raise ValueError("only towers with the tanh GELU that are read at their last layer")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_use_gelu(True)
    writer.add_vision_embedding_length(tower["hidden_size"])
    writer.add_vision_feed_forward_length(tower["intermediate_size"])
    writer.add_vision_block_count(tower["num_hidden_layers"])
    writer.add_vision_head_count(tower["num_attention_heads"])
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(tower["image_size"])
    writer.add_vision_patch_size(tower["patch_size"])
    writer.add_vision_attention_layernorm_eps(tower["layer_norm_eps"])
    writer.add_vision_image_mean(pictures["image_mean"])
    writer.add_vision_image_std(pictures["image_std"])
    # Unless told, llama.cpp leaves out the last layer, as LLaVA 1.5 does.
    writer.add_array("clip.vision.feature_layer", [tower["num_hidden_layers"]])


def _new_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.{kind}"
    layer, inner = stem.removeprefix(f"{_TOWER}encoder.layers.").split(".", 1)
    return f"v.blk.{layer}.{_LAYER_NAMES[inner]}.{kind}"


def convert_mmproj(source: Path, target: Path) -> None:
    """Write what sees of the LLaVA folder `source` to the GGUF file `target`, as f16."""
    config, processor = (
        json.loads((source / name).read_text(encoding="utf-8"))
        for name in ("config.json", "processor_config.json")
    )
    with open_writer(target, "clip") as writer:
        writer.add_type("mmproj")
        writer.add_name(f"{source.resolve().name}-mmproj")
        writer.add_file_type(LlamaFileType.MOSTLY_F16)
        _write_shape(writer, config, processor["image_processor"])
        for name, weight in sorted(load_file(source / "model.safetensors").items()):
            # llama.cpp would apply the last norm, which LLaVA does not.
            if name.startswith(("language_model.", f"{_TOWER}post_layernorm.")):
                continue
            small = weight.ndim == 1 or "position" in name
            writer.add_tensor(_new_name(name), weight.astype(np.float32 if small else np.float16))
