"""Tiny random models that generate nothing, saved as their makers save them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import nn

from tests.backends.tiny import VOCAB_SIZE, edit, make_tokenizer

BOS, EOS, PAD = 0, 1, 2
CONTEXT = 128
WIDTH = 32
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
CAUSAL = {**SIZES, "num_key_value_heads": 1, "head_dim": 16}
TEXTS = [
    "the quick brown fox",
    "jumps",
    "over the lazy dog, a man, a plan, a canal",
    "1 + 2 = 3",
    "a",
    "the quick brown fox jumps over the lazy dog " * 3,
]
QUERY = "what does the fox do"

Make = Callable[[Path], Path]


def randomize(model: nn.Module, scale: float = 0.15) -> None:
    """Give a model weights with which texts differ."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.02)


def save(
    folder: Path,
    model: nn.Module,
    *,
    around: bool = True,
    pairs: bool = True,
    segments: bool = True,
    scale: float = 0.15,
) -> Path:
    """Save a model with random weights.

    `around`: the tokenizer puts tokens around texts, `pairs`: between those of pairs, and
    `segments`: it numbers them.
    """
    randomize(model, scale)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    start = "<|bos|> " if around else ""
    special = [("<|bos|>", BOS), ("<|eos|>", EOS)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{start}$A <|eos|>",
        pair=f"{start}$A <|eos|> $B:1 <|eos|>:1" if pairs else "$A $B:1",
        special_tokens=special,
    )
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    inputs = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    edit(folder / "tokenizer_config.json", model_input_names=inputs)
    return folder


def modules(
    folder: Path,
    pooling: dict[str, Any] | None,
    *,
    dense: Sequence[tuple[int, int, str]] = (),
    normalize: bool = False,
    length: int | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
) -> Path:
    """Write what sentence-transformers writes beside a model."""
    kinds = [("", "models.Transformer")]
    if pooling is not None:
        kinds.append(("1_Pooling", "models.Pooling"))
        (folder / "1_Pooling").mkdir()
        edit(folder / "1_Pooling" / "config.json", word_embedding_dimension=WIDTH, **pooling)
    for inputs, outputs, activation in dense:
        path = f"{len(kinds)}_Dense"
        kinds.append((path, "models.Dense"))
        (folder / path).mkdir()
        edit(
            folder / path / "config.json",
            in_features=inputs,
            out_features=outputs,
            bias=True,
            activation_function=f"torch.nn.modules.{activation}",
        )
        weights = {
            "linear.weight": torch.randn(outputs, inputs) / 4,
            "linear.bias": torch.randn(outputs) / 4,
        }
        save_file(weights, folder / path / "model.safetensors")
    if normalize:
        kinds.append((f"{len(kinds)}_Normalize", "models.Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    if length:
        edit(folder / "sentence_bert_config.json", max_seq_length=length, do_lower_case=False)
    if prompts is not None:
        edit(
            folder / "config_sentence_transformers.json",
            prompts=prompts,
            default_prompt_name=default_prompt,
        )
    return folder


def bert_mean(folder: Path) -> Path:
    """As all-MiniLM-L6-v2, with the old names of poolings."""
    save(folder, tf.BertModel(tf.BertConfig(**SIZES)))
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    return modules(folder, pooling, normalize=True, length=64)


def bert_cls(folder: Path) -> Path:
    """As bge-small-en, but not normalised."""
    save(folder, tf.BertModel(tf.BertConfig(**SIZES)))
    return modules(folder, {"pooling_mode_cls_token": True})


def bert_joined(folder: Path) -> Path:
    """All poolings at once."""
    save(folder, tf.BertModel(tf.BertConfig(**SIZES)))
    modes = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
    return modules(folder, {"pooling_mode": modes})


def roberta_dense(folder: Path) -> Path:
    """As distiluse and LaBSE, whose last layer is linear with an activation."""
    save(folder, tf.RobertaModel(tf.RobertaConfig(**SIZES)), segments=False)
    dense = [(WIDTH, 24, "activation.Tanh"), (24, 16, "linear.Identity")]
    return modules(folder, {"pooling_mode": "mean"}, dense=dense)


def modernbert_cls(folder: Path) -> Path:
    """As gte-modernbert-base, with layers that see only what is near."""
    config = tf.ModernBertConfig(
        **{**SIZES, "num_hidden_layers": 3}, global_attn_every_n_layers=2, local_attention=8
    )
    save(folder, tf.ModernBertModel(config), segments=False)
    return modules(folder, {"pooling_mode": "cls"}, normalize=True)


def mpnet_mean(folder: Path) -> Path:
    """As all-mpnet-base-v2."""
    save(folder, tf.MPNetModel(tf.MPNetConfig(**SIZES)), segments=False)
    return modules(folder, {"pooling_mode_mean_tokens": True}, normalize=True)


def qwen3_last(folder: Path) -> Path:
    """As Qwen3-Embedding: a text model's folder, prompts, Matryoshka."""
    save(folder, tf.Qwen3ForCausalLM(tf.Qwen3Config(**CAUSAL)), around=False, segments=False)
    prompts = {"query": "Instruct: find it\nQuery:", "document": ""}
    modules(folder, {"pooling_mode_lasttoken": True}, normalize=True, prompts=prompts)
    edit(folder / "config.json", is_matryoshka=True, matryoshka_dimensions=[8, 16])
    return folder


def gemma3_dense(folder: Path) -> Path:
    """As EmbeddingGemma: both ways, a prompt by default."""
    config = tf.Gemma3TextConfig(**CAUSAL, use_bidirectional_attention=True, sliding_window=8)
    save(folder, tf.Gemma3TextModel(config), segments=False)
    dense = [(WIDTH, 48, "linear.Identity"), (48, WIDTH, "linear.Identity")]
    prompts = {"document": "title: none | text: "}
    return modules(
        folder,
        {"pooling_mode": "mean"},
        dense=dense,
        normalize=True,
        prompts=prompts,
        default_prompt="document",
    )


EMBEDS: dict[str, Make] = {
    make.__name__: make
    for make in (
        bert_mean,
        bert_cls,
        bert_joined,
        roberta_dense,
        modernbert_cls,
        mpnet_mean,
        qwen3_last,
        gemma3_dense,
    )
}


def bert_ranks(folder: Path) -> Path:
    """As ms-marco-MiniLM: a cross-encoder with segments."""
    config = tf.BertConfig(**SIZES, num_labels=1)
    return save(folder, tf.BertForSequenceClassification(config), scale=0.3)


def roberta_ranks(folder: Path) -> Path:
    """As bge-reranker: without segments, and with raw scores."""
    config = tf.RobertaConfig(**SIZES, num_labels=1)
    save(folder, tf.RobertaForSequenceClassification(config), segments=False)
    activation = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "6.0"}
    edit(folder / "config.json", sentence_transformers=activation)
    return folder


def qwen3_rewards(folder: Path) -> Path:
    """As Skywork-Reward: a causal model with a head of one output."""
    config = tf.Qwen3Config(**CAUSAL, num_labels=1)
    return save(folder, tf.Qwen3ForSequenceClassification(config), around=False, segments=False)


CLASSES = {0: "joy", 1: "anger", 2: "doubt"}


def modernbert_classes(folder: Path, **more: Any) -> Path:
    """A classifier of three classes."""
    config = tf.ModernBertConfig(**SIZES, id2label=CLASSES, **more)
    return save(folder, tf.ModernBertForSequenceClassification(config), segments=False, scale=0.4)


def bert_labels(folder: Path) -> Path:
    """As go_emotions: several of three labels may apply."""
    config = tf.BertConfig(**SIZES, id2label=CLASSES, problem_type="multi_label_classification")
    return save(folder, tf.BertForSequenceClassification(config), scale=0.4)


CLASSIFIES: dict[str, Make] = {
    make.__name__: make
    for make in (bert_ranks, roberta_ranks, qwen3_rewards, modernbert_classes, bert_labels)
}


def qwen3_answers(folder: Path, *, template: bool = False) -> Path:
    """As Qwen3-Reranker; with a `template` as mxbai-rerank, as sentence-transformers saves them."""
    save(folder, tf.Qwen3ForCausalLM(tf.Qwen3Config(**CAUSAL)), around=False, segments=False)
    listed = [
        ("", "base.modules.transformer.Transformer"),
        ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore"),
    ]
    content = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(listed)
    ]
    (folder / "modules.json").write_text(json.dumps(content))
    (folder / "1_LogitScore").mkdir()
    edit(folder / "1_LogitScore" / "config.json", true_token_id=60, false_token_id=61)
    text = {"method": "forward", "method_output_name": "logits"}
    modality = {"text": text}
    if template:
        modality["message"] = {**text, "format": "flat"}
        edit(
            folder / "tokenizer_config.json",
            chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}<|eos|>{% endfor %}"
            "{% if add_generation_prompt %}<tool_call>{% endif %}",
        )
    edit(
        folder / "sentence_bert_config.json",
        transformer_task="text-generation",
        modality_config=modality,
        module_output_name="causal_logits",
        processing_kwargs={"chat_template": {"add_generation_prompt": True}},
    )
    return folder


def value_head(folder: Path, *, binary: bool = False) -> Path:
    """Write the head of a reward model of LLaMA-Factory; the value of a text is about 1."""
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "v_head.summary.weight": torch.randn(1, WIDTH, generator=generator),
        "v_head.summary.bias": torch.ones(1),
    }
    folder.mkdir(exist_ok=True)
    if binary:
        torch.save(tensors, folder / "value_head.bin")
    else:
        save_file(tensors, folder / "value_head.safetensors", metadata={"format": "pt"})
    return folder


def qwen3_text(folder: Path, **more: Any) -> Path:
    """A text model."""
    config = tf.Qwen3Config(**{**CAUSAL, **more})
    return save(folder, tf.Qwen3ForCausalLM(config), around=False, segments=False)


def lora(folder: Path, base: str) -> Path:
    """A LoRA of `qwen3_text` as PEFT saves it."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    name = "base_model.model.model.layers.1.self_attn.o_proj.lora_"
    tensors = {
        f"{name}A.weight": torch.randn(2, 32, generator=generator),
        f"{name}B.weight": torch.randn(WIDTH, 2, generator=generator),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    edit(
        folder / "adapter_config.json",
        peft_type="LORA",
        r=2,
        lora_alpha=4,
        target_modules=["o_proj"],
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    return folder
