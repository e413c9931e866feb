"""Models of given shapes with random weights, as GGUF files and as folders of transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama; `kind` is the number format of its weights, `experts` those of each layer."""

    name: str
    kind: str
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    layers: int
    vocab: int
    tied: bool = False
    experts: int = 0


GGUF = (
    Shape(name="f16", kind="F16", width=512, feed_forward=1536, heads=8, kv_heads=8, layers=8,
          vocab=32000),
    Shape(name="q8", kind="Q8_0", width=1024, feed_forward=2816, heads=16, kv_heads=4, layers=12,
          vocab=32000),
    Shape(name="q4-tied", kind="Q4_0", width=1024, feed_forward=4096, heads=16, kv_heads=16,
          layers=16, vocab=64000, tied=True),
    Shape(name="q8-vocabulary", kind="Q8_0", width=256, feed_forward=768, heads=4, kv_heads=2,
          layers=6, vocab=128000),
    Shape(name="q8-experts", kind="Q8_0", width=512, feed_forward=1024, heads=8, kv_heads=4,
          layers=6, vocab=16000, experts=8),
    Shape(name="f32-small", kind="F32", width=256, feed_forward=1024, heads=4, kv_heads=4,
          layers=4, vocab=8000),
)  # fmt: skip
CHECKPOINTS = (
    Shape(name="float32", kind="float32", width=512, feed_forward=1536, heads=8, kv_heads=8,
          layers=8, vocab=16000),
    Shape(name="bfloat16", kind="bfloat16", width=1024, feed_forward=2816, heads=16, kv_heads=4,
          layers=8, vocab=32000),
    Shape(name="bfloat16-tied", kind="bfloat16", width=512, feed_forward=1536, heads=8,
          kv_heads=2, layers=12, vocab=64000, tied=True),
    Shape(name="float16", kind="float16", width=512, feed_forward=1536, heads=8, kv_heads=8,
          layers=6, vocab=24000, tied=True),
)  # fmt: skip


def write_gguf(shape: Shape, path: Path) -> Path:
    """A GGUF file, unless it is there."""
    if path.exists():
        return path
    import gguf

    file = gguf.GGUFWriter(path, "llama")
    size = shape.width // shape.heads
    file.add_context_length(4096)
    file.add_embedding_length(shape.width)
    file.add_block_count(shape.layers)
    file.add_feed_forward_length(shape.feed_forward)
    file.add_head_count(shape.heads)
    file.add_head_count_kv(shape.kv_heads)
    file.add_key_length(size)
    file.add_value_length(size)
    file.add_rope_dimension_count(size)
    file.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        file.add_expert_count(shape.experts)
        file.add_expert_used_count(2)
    tokens = ["<s>", "</s>", *_byte_characters()]
    tokens += [f"token{i}" for i in range(shape.vocab - len(tokens))]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    file.add_token_merges(["t h"])
    file.add_bos_token_id(0)
    file.add_eos_token_id(1)
    kind = getattr(gguf.GGMLQuantizationType, shape.kind)
    for name, dimensions in _tensors(shape):
        if len(dimensions) == 1:
            file.add_tensor(name, np.ones(dimensions, np.float32))
        elif "gate_inp" in name:
            file.add_tensor(name, _noise(dimensions))
        else:
            file.add_tensor(name, gguf.quants.quantize(_noise(dimensions), kind), raw_dtype=kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def write_checkpoint(shape: Shape, folder: Path) -> Path:
    """A folder of transformers, unless it is there."""
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    config = LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        num_hidden_layers=shape.layers,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.kind))
    model.save_pretrained(folder)
    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"token{i}" for i in range(shape.vocab - len(words))]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    made.save_pretrained(folder)
    return folder


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner = shape.width, shape.feed_forward
    shared = shape.kv_heads * width // shape.heads
    yield "token_embd.weight", (shape.vocab, width)
    yield "output_norm.weight", (width,)
    if not shape.tied:
        yield "output.weight", (shape.vocab, width)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}"
        yield f"{prefix}.attn_norm.weight", (width,)
        yield f"{prefix}.ffn_norm.weight", (width,)
        for name, rows in (("q", width), ("k", shared), ("v", shared), ("output", width)):
            yield f"{prefix}.attn_{name}.weight", (rows, width)
        if shape.experts:
            yield f"{prefix}.ffn_gate_inp.weight", (shape.experts, width)
        each = (shape.experts,) if shape.experts else ()
        kind = "_exps" if shape.experts else ""
        yield f"{prefix}.ffn_gate{kind}.weight", (*each, inner, width)
        yield f"{prefix}.ffn_up{kind}.weight", (*each, inner, width)
        yield f"{prefix}.ffn_down{kind}.weight", (*each, width, inner)


def _noise(dimensions: tuple[int, ...]) -> NDArray[np.float32]:
    block = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32) * 0.02
    return np.resize(block, dimensions)


def _byte_characters() -> list[str]:
    """How GPT-2 spells each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [value for value in range(256) if value not in printable]
    return [chr(v) if v in printable else chr(256 + hidden.index(v)) for v in range(256)]
