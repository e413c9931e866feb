"""Tiny random models that exllamav2 can run, and what its generator says with them."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from enginebay_checkpoint.tokenizer import load_tokenizer
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.options import ExLlamaV2Options
from tests.backends.tiny import VOCAB_SIZE, make_tokenizer

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 2,
    "eos_token_id": 1,
}


def make_model(folder: Path, model_type: str = "llama", **changes: Any) -> PreTrainedModel:
    """A model of a family with random weights, saved to `folder` with a tokenizer."""
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # weights that make positions, and what stands there, matter
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                width = parameter.shape[-1]
                parameter.normal_(0, (1.0 if "embed" in name else 1.5) * width**-0.5)
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.half().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model.float().eval()


def change_config(folder: Path, **changes: Any) -> None:
    """Overwrite keys of `config.json`; None removes one."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def load(folder: Path, progress: Any = lambda stage, fraction: None, **options: Any) -> Any:
    """A `ServedModel`; exllamav2 must be importable."""
    from enginebay_exllamav2.model import load_model

    checkpoint = ExLlamaV2Checkpoint(folder)
    checkpoint.check()
    tokenizer = load_tokenizer(checkpoint, local_files_only=True)
    given = ExLlamaV2Options.model_validate(options)
    return load_model(checkpoint, given, folder, tokenizer, progress)


def generate(loaded: Any, prompt: list[int], tokens: int, **job: Any) -> tuple[list[int], Tensor]:
    """Greedy tokens and the log-probabilities `[tokens, vocabulary]` they were taken from."""
    from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

    loras = job.pop("loras", None)
    generator = loaded.new_generator()
    generator.current_loras = loras
    generator.enqueue(
        ExLlamaV2DynamicJob(
            input_ids=torch.tensor([prompt]),
            max_new_tokens=tokens + loaded.draft_tokens,
            gen_settings=ExLlamaV2Sampler.Settings.greedy(),
            return_logits=True,
            **job,
        )
    )
    token_ids: list[int] = []
    logits: list[Tensor] = []
    while generator.num_remaining_jobs():
        for result in generator.iterate():
            if "token_ids" in result:
                token_ids += result["token_ids"][0].tolist()
                logits.append(result["logits"][0, :, : loaded.vocab_size].float())
    return token_ids[:tokens], torch.cat(logits)[:tokens].log_softmax(-1)


@torch.no_grad()
def reference(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> Tensor:
    """The log-probabilities that transformers gives in the same places."""
    token_ids = torch.tensor([[*prompt, *completion]])
    logits = model(token_ids).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)
