"""Tiny random GGUF models of several architectures, and an adapter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf import PoolingType, TokenType

SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|pad|>", "<|user|>"]
BERT_SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB_SIZE = 264
CONTEXT = 512
WIDTH, FEED_FORWARD, HEADS, LAYERS = 64, 64, 2, 2
_STATE, _KERNEL, _RANK = 8, 4, 4


class _Writer:
    """A GGUF file in the making, its weights drawn from a seed."""

    def __init__(self, path: Path, kind: str, seed: int, **settings: Any) -> None:
        self._path = path
        self.kind = kind
        self._random = np.random.default_rng(seed)
        self.file = gguf.GGUFWriter(path, kind, **settings)

    def normal(self, name: str, *shape: int, scale: float = 0.3) -> None:
        weight = self._random.standard_normal(shape) * scale
        self.file.add_tensor(name, weight.astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.file.add_tensor(name, np.ones(shape, np.float32))

    def norm(self, name: str) -> None:
        self.ones(f"{name}.weight", WIDTH)
        self.file.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))

    def finish(self) -> Path:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()
        return self._path


def _byte_characters() -> list[str]:
    """How GPT-2 spells each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [value for value in range(256) if value not in printable]
    return [chr(v) if v in printable else chr(256 + hidden.index(v)) for v in range(256)]


def _start(
    path: Path,
    kind: str,
    seed: int,
    template: str | Sequence[Mapping[str, str]] | None = None,
    without_byte: int | None = None,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    words: Literal["bytes", "sentencepiece", "wordpiece"] = "bytes",
    context: int = CONTEXT,
    **settings: Any,
) -> _Writer:
    writer = _Writer(path, kind, seed, **settings)
    file = writer.file
    file.add_context_length(context)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_layer_norm_rms_eps(1e-5)
    if words == "wordpiece":
        _add_word_pieces(file)
    elif words == "sentencepiece":
        _add_sentencepiece(file)
    else:
        _add_bytes(file, without_byte, special_tokens)
    if kind not in ("bert", "lfm2"):
        writer.ones("output_norm.weight", WIDTH)
    if template:
        file.add_chat_template(template)
    writer.normal("token_embd.weight", VOCAB_SIZE, WIDTH, scale=0.5)
    return writer


def _add_word_pieces(file: gguf.GGUFWriter) -> None:
    """Lower-case letters and a few words, as a BERT has them."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [*BERT_SPECIAL_TOKENS, *letters, *[f"▁{letter}" for letter in letters], "▁the", "▁bay"]
    tokens += [f"[unused{i}]" for i in range(VOCAB_SIZE - len(tokens))]
    types = [TokenType.NORMAL] * VOCAB_SIZE
    types[: len(BERT_SPECIAL_TOKENS)] = [TokenType.CONTROL] * len(BERT_SPECIAL_TOKENS)
    file.add_tokenizer_model("bert")
    file.add_token_list(tokens)
    file.add_token_types(types)
    file.add_pad_token_id(0)
    file.add_unk_token_id(1)
    file.add_bos_token_id(2)
    file.add_sep_token_id(3)
    file.add_mask_token_id(4)


def _add_sentencepiece(file: gguf.GGUFWriter) -> None:
    """Bytes and a few pieces, and a space in front of every text, as Llama 2 has them."""
    pieces = {"▁": -5.0, "th": -4.0, "▁th": -3.0, "the": -2.0, "▁the": -1.0}
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{value:02X}>" for value in range(256)], *pieces]
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([0.0] * (len(tokens) - len(pieces)) + list(pieces.values()))
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    file.add_token_types([*types, *[TokenType.NORMAL] * len(pieces)])
    file.add_unk_token_id(0)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_add_space_prefix(True)


def _add_bytes(
    file: gguf.GGUFWriter, without_byte: int | None, special_tokens: Sequence[str]
) -> None:
    merges = ["t h", "th e"]
    tokens = [*special_tokens, *_byte_characters(), "th", "the"]
    if without_byte is not None:
        tokens[len(special_tokens) + without_byte] = "[PAD]"
    tokens += [f"[PAD{i}]" for i in range(VOCAB_SIZE - len(tokens))]
    types = [TokenType.NORMAL] * VOCAB_SIZE
    types[: len(special_tokens)] = [TokenType.CONTROL] * len(special_tokens)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types(types)
    file.add_token_merges(merges)
    file.add_bos_token_id(0)
    file.add_eos_token_id(1)
    file.add_pad_token_id(2)
    file.add_add_bos_token(True)


def _attention(file: gguf.GGUFWriter) -> None:
    file.add_feed_forward_length(FEED_FORWARD)
    file.add_head_count(HEADS)
    file.add_head_count_kv(1)
    file.add_key_length(WIDTH // HEADS)
    file.add_value_length(WIDTH // HEADS)


def _layer(writer: _Writer, prefix: str, experts: int = 0, convolves: bool | None = None) -> None:
    """`convolves`: whether it has a convolution in place of attention; None: the kind has none."""
    size = WIDTH // HEADS
    writer.ones(f"{prefix}.attn_norm.weight", WIDTH)
    if convolves:
        writer.normal(f"{prefix}.shortconv.conv.weight", WIDTH, _KERNEL)
        writer.normal(f"{prefix}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
        writer.normal(f"{prefix}.shortconv.out_proj.weight", WIDTH, WIDTH)
    else:
        writer.normal(f"{prefix}.attn_q.weight", WIDTH, WIDTH)
        writer.normal(f"{prefix}.attn_k.weight", size, WIDTH)
        writer.normal(f"{prefix}.attn_v.weight", size, WIDTH)
        writer.normal(f"{prefix}.attn_output.weight", WIDTH, WIDTH)
        if convolves is False:
            writer.ones(f"{prefix}.attn_q_norm.weight", size)
            writer.ones(f"{prefix}.attn_k_norm.weight", size)
    writer.ones(f"{prefix}.ffn_norm.weight", WIDTH)
    if experts:
        writer.normal(f"{prefix}.ffn_gate_inp.weight", experts, WIDTH)
        for name in ("gate", "up", "down"):
            writer.normal(f"{prefix}.ffn_{name}_exps.weight", experts, FEED_FORWARD, WIDTH)
        return
    writer.normal(f"{prefix}.ffn_gate.weight", FEED_FORWARD, WIDTH)
    writer.normal(f"{prefix}.ffn_up.weight", FEED_FORWARD, WIDTH)
    writer.normal(f"{prefix}.ffn_down.weight", WIDTH, FEED_FORWARD)


def write_llama(
    path: Path,
    template: str | Sequence[Mapping[str, str]] | None = None,
    sampling: dict[str, float] | None = None,
    seed: int = 0,
    pooling: PoolingType | None = None,
    **more: Any,
) -> Path:
    writer = _start(path, "llama", seed, template, **more)
    _attention(writer.file)
    writer.file.add_rope_dimension_count(WIDTH // HEADS)
    if pooling is not None:
        writer.file.add_pooling_type(pooling)
    for name, value in (sampling or {}).items():
        writer.file.add_float32(f"general.sampling.{name}", value)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}")
    return writer.finish()


def write_two_ranges(path: Path, original: int) -> Path:
    """A Llama with other rotary factors in contexts longer than `original`, as Phi-3 has them."""
    writer = _start(path, "llama", 9)
    _attention(writer.file)
    writer.file.add_rope_dimension_count(WIDTH // HEADS)
    writer.file.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.file.add_rope_scaling_orig_ctx_len(original)
    writer.ones("rope_factors_short.weight", WIDTH // HEADS // 2)
    writer.normal("rope_factors_long.weight", WIDTH // HEADS // 2, scale=10.0)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}")
    return writer.finish()


def write_moe(path: Path, experts: int = 4) -> Path:
    """A Llama whose layers have experts, of which a token needs two."""
    writer = _start(path, "llama", 7)
    _attention(writer.file)
    writer.file.add_rope_dimension_count(WIDTH // HEADS)
    writer.file.add_expert_count(experts)
    writer.file.add_expert_used_count(2)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}", experts=experts)
    return writer.finish()


def write_bert(
    path: Path,
    pooling: PoolingType | None = PoolingType.MEAN,
    *,
    labels: Sequence[str] = (),
    **more: Any,
) -> Path:
    """Every token sees all others, and there is no KV cache.

    With `labels` it has a classification head, with an output for each.
    """
    writer = _start(path, "bert", 4, words="wordpiece", **more)
    file = writer.file
    file.add_feed_forward_length(FEED_FORWARD)
    file.add_head_count(HEADS)
    file.add_layer_norm_eps(1e-5)
    file.add_causal_attention(False)
    file.add_token_type_count(1)
    if pooling is not None:
        file.add_pooling_type(pooling)
    writer.normal("token_types.weight", 1, WIDTH)
    writer.normal("position_embd.weight", CONTEXT, WIDTH)
    writer.norm("token_embd_norm")
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.normal(f"{prefix}.{name}.weight", WIDTH, WIDTH)
        writer.norm(f"{prefix}.attn_output_norm")
        writer.normal(f"{prefix}.ffn_up.weight", FEED_FORWARD, WIDTH)
        writer.normal(f"{prefix}.ffn_down.weight", WIDTH, FEED_FORWARD)
        writer.norm(f"{prefix}.layer_output_norm")
    if labels:
        file.add_classifier_output_labels(labels)
        writer.normal("cls.weight", WIDTH, WIDTH)
        writer.normal("cls.bias", WIDTH)
        writer.normal("cls.output.weight", len(labels), WIDTH)
        writer.normal("cls.output.bias", len(labels))
    return writer.finish()


def write_qwen3_reranker(path: Path, template: str | None) -> Path:
    """Causal, and says yes or no to a prompt."""
    templates = [{"name": "rerank", "template": template}] if template else None
    writer = _start(path, "qwen3", 5, templates)
    _attention(writer.file)
    writer.file.add_pooling_type(PoolingType.RANK)
    writer.file.add_classifier_output_labels(["yes", "no"])
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}")
        writer.ones(f"blk.{layer}.attn_q_norm.weight", WIDTH // HEADS)
        writer.ones(f"blk.{layer}.attn_k_norm.weight", WIDTH // HEADS)
    writer.normal("cls.output.weight", 2, WIDTH)
    return writer.finish()


def write_sliding(path: Path) -> Path:
    """Gemma 2: every other layer sees 8 tokens only."""
    writer = _start(path, "gemma2", 1)
    _attention(writer.file)
    writer.file.add_sliding_window(8)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}")
        writer.ones(f"blk.{layer}.post_attention_norm.weight", WIDTH)
        writer.ones(f"blk.{layer}.post_ffw_norm.weight", WIDTH)
    return writer.finish()


def write_recurrent(path: Path) -> Path:
    """Mamba: no attention."""
    inner = 2 * WIDTH
    writer = _start(path, "mamba", 2)
    file = writer.file
    file.add_feed_forward_length(0)
    file.add_head_count(0)
    file.add_ssm_conv_kernel(_KERNEL)
    file.add_ssm_inner_size(inner)
    file.add_ssm_state_size(_STATE)
    file.add_ssm_time_step_rank(_RANK)
    writer.normal("output.weight", VOCAB_SIZE, WIDTH)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        writer.ones(f"{prefix}.attn_norm.weight", WIDTH)
        writer.normal(f"{prefix}.ssm_in.weight", 2 * inner, WIDTH)
        writer.normal(f"{prefix}.ssm_conv1d.weight", inner, _KERNEL)
        writer.normal(f"{prefix}.ssm_conv1d.bias", inner)
        writer.normal(f"{prefix}.ssm_x.weight", _RANK + 2 * _STATE, inner)
        writer.normal(f"{prefix}.ssm_dt.weight", inner, _RANK)
        writer.normal(f"{prefix}.ssm_dt.bias", inner)
        decay = np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (inner, 1))
        file.add_tensor(f"{prefix}.ssm_a", -decay)
        writer.ones(f"{prefix}.ssm_d", inner)
        writer.normal(f"{prefix}.ssm_out.weight", WIDTH, inner)
    return writer.finish()


def write_hybrid(path: Path) -> Path:
    """LFM2: a short convolution, then attention."""
    writer = _start(path, "lfm2", 3)
    file = writer.file
    file.add_feed_forward_length(FEED_FORWARD)
    file.add_head_count(HEADS)
    file.add_head_count_kv([0, 1])
    file.add_key_length(WIDTH // HEADS)
    file.add_value_length(WIDTH // HEADS)
    file.add_shortconv_l_cache(_KERNEL)
    writer.ones("token_embd_norm.weight", WIDTH)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}", convolves=layer == 0)
    return writer.finish()


def write_adapter(path: Path, width: int = WIDTH, kind: str = "llama") -> Path:
    """A LoRA adapter for the model of `write_llama`, or one of another architecture."""
    writer = _Writer(path, kind, 3)
    writer.file.add_type("adapter")
    writer.file.add_string("adapter.type", "lora")
    writer.file.add_float32("adapter.lora.alpha", 8.0)
    for layer in range(LAYERS):
        name = f"blk.{layer}.attn_q.weight"
        writer.normal(f"{name}.lora_a", 4, width)
        writer.normal(f"{name}.lora_b", width, 4)
    return writer.finish()
