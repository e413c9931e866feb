"""Tiny random models of several architectures, made in a second and saved like downloaded ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
)
from enginebay_hf.engine import HFEngine
from enginebay_hf.loading import load_engine
from enginebay_hf.options import HFOptions
from tests.run import Run as Run
from tests.run import request as request

SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|pad|>", "<tool_call>"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
CORPUS = ["the quick brown fox jumps over the lazy dog", "a man, a plan, a canal", "1 + 2 = 3"] * 4
VOCAB_SIZE = 320
EOS = 1
TOOL_CALL = 3
PROMPTS = [
    [5, 60, 7],
    [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51],
    [200, 9, 200, 9, 200, 9, 30],
]

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}
_RECURRENT = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 3},  # sliding
    "mistral": {"sliding_window": 8},
    "lfm2": {"block_ff_dim": 48, "layer_types": ["conv", "full_attention"]},  # convolution states
    "qwen3_next": {"head_dim": 16, "num_hidden_layers": 4, **_RECURRENT},  # recurrent states
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1},  # no attention
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256},  # learned positions
    "bloom": {"n_layer": 2, "n_head": 2},  # alibi
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer=trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Save a random model of `family` and its tokenizer in `folder`."""
    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        family,
        **{
            **_SIZES,
            "vocab_size": VOCAB_SIZE,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            **FAMILIES.get(family, {}),
            **changes,
        },
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def greedy_reference(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return output[0, len(prompt) :].tolist()


def load(folder: Path, **options: Any) -> HFEngine:
    chosen = HFOptions(**{"device": "cpu", **options})
    return load_engine(BackendSettings(name="tiny", path=str(folder), options=chosen))


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(BackendUnavailableError) as caught:
        load(folder, **options)
    assert str(folder) in caught.value.message
    return caught.value.message
