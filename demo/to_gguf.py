"""Convert a Llama model (safetensors, byte-level BPE) to GGUF for llama.cpp.

`python -m demo.to_gguf demo/model demo.gguf --mmproj mmproj-demo.gguf`; needs numpy, gguf and
safetensors only. Of a LLaVA model it takes the Llama model inside; the file of `--mmproj` holds the
rest, which sees.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from safetensors import safe_open

from demo.language_model import PREFIX, text_config
from demo.to_mmproj import convert_mmproj, open_writer

Json = dict[str, Any]

_TYPES = {
    "f32": (LlamaFileType.ALL_F32, GGMLQuantizationType.F32),
    "f16": (LlamaFileType.MOSTLY_F16, GGMLQuantizationType.F16),
    "bf16": (LlamaFileType.MOSTLY_BF16, GGMLQuantizationType.BF16),
    "q8_0": (LlamaFileType.MOSTLY_Q8_0, GGMLQuantizationType.Q8_0),
}
_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@dataclass(frozen=True, slots=True)
class _Source:
    """The files of the model that are read."""

    folder: Path
    config: Json
    tokenizer: Json
    tokenizer_config: Json

    @classmethod
    def read(cls, folder: Path) -> "_Source":
        def load(name: str) -> Json:
            content: Json = json.loads((folder / name).read_text(encoding="utf-8"))
            return content

        config = text_config(load("config.json"))
        if config["model_type"] != "llama":
            raise ValueError(f"only Llama models can be converted, not {config['model_type']}")
        return cls(folder, config, load("tokenizer.json"), load("tokenizer_config.json"))

    @property
    def head_dim(self) -> int:
        return int(
            self.config.get("head_dim")
            or self.config["hidden_size"] // self.config["num_attention_heads"]
        )

    def skips(self, name: str) -> bool:
        """Whether a weight is written already, or is not the language model's."""
        tied = name == "lm_head.weight" and bool(self.config.get("tie_word_embeddings"))
        return tied or name.startswith(("vision_tower.", "multi_modal_projector."))

    @property
    def rope_theta(self) -> float:
        rope: Json = self.config.get("rope_parameters") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"cannot convert RoPE of type {rope['rope_type']}")
        return float(rope.get("rope_theta") or self.config.get("rope_theta", 10_000.0))


def _write_shape(writer: gguf.GGUFWriter, source: _Source) -> None:
    config = source.config
    writer.add_type("model")
    writer.add_name(source.folder.resolve().name)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(source.head_dim)
    writer.add_value_length(source.head_dim)
    writer.add_rope_dimension_count(source.head_dim)
    writer.add_rope_freq_base(source.rope_theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _tokens(source: _Source) -> tuple[list[str], list[TokenType]]:
    size: int = source.config["vocab_size"]
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [TokenType.UNUSED] * size
    for token, i in source.tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = token, TokenType.NORMAL
    for added in source.tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        # USER_DEFINED tokens stay in the text, as in HF those that are not special.
        types[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    return tokens, types


def _write_tokenizer(writer: gguf.GGUFWriter, source: _Source) -> None:
    tokens, types = _tokens(source)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = source.tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    # Without these llama.cpp takes token 11 for both.
    settings = source.tokenizer_config
    writer.add_bos_token_id(tokens.index(settings["bos_token"]))
    writer.add_eos_token_id(tokens.index(settings["eos_token"]))
    writer.add_eot_token_id(tokens.index(settings["eos_token"]))
    if settings.get("pad_token"):
        writer.add_pad_token_id(tokens.index(settings["pad_token"]))
    writer.add_add_bos_token(bool(settings.get("add_bos_token", False)))
    writer.add_add_space_prefix(False)
    template = source.folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def _new_name(name: str) -> str:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    layer, inner = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{_LAYER_NAMES[inner]}.weight"


def _interleave(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """HF rotates the two halves of a head, llama.cpp rotates neighbours: reorder the rows."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, weight: np.ndarray[Any, Any], kind: GGMLQuantizationType
) -> None:
    if weight.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, weight)  # norms stay f32
    elif kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, weight.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)


def _write_weights(writer: gguf.GGUFWriter, source: _Source, kind: GGMLQuantizationType) -> None:
    heads = {
        ".q_proj.": source.config["num_attention_heads"],
        ".k_proj.": source.config["num_key_value_heads"],
    }
    for path in sorted(source.folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                inner = name.removeprefix(PREFIX)
                if source.skips(inner):
                    continue
                weight = file.get_tensor(name).astype(np.float32)
                for part, amount in heads.items():
                    if part in inner:
                        weight = _interleave(weight, amount)
                _write_tensor(writer, _new_name(inner), weight, kind)


def convert(source: Path, target: Path, file_type: str) -> None:
    """Write the model in `source` to the GGUF file `target`, as f32, f16, bf16 or q8_0."""
    if file_type not in _TYPES:
        raise ValueError(f"unknown type {file_type}: choose one of {', '.join(_TYPES)}")
    model = _Source.read(source)
    label, kind = _TYPES[file_type]
    with open_writer(target, "llama") as writer:
        _write_shape(writer, model)
        writer.add_file_type(label)
        if file_type == "q8_0":
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _write_tokenizer(writer, model)
        _write_weights(writer, model, kind)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of the model")
    parser.add_argument("target", type=Path, help="GGUF file to write")
    parser.add_argument("--type", default="f16", choices=sorted(_TYPES))
    parser.add_argument("--mmproj", type=Path, help="GGUF file to write what sees to, as f16")
    args = parser.parse_args()
    convert(args.source, args.target, args.type)
    if args.mmproj:
        convert_mmproj(args.source, args.mmproj)
    for path in filter(None, (args.target, args.mmproj)):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
