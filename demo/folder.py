"""Model folders that every engine and older readers understand, replaced file by file."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, LlamaForCausalLM, LlavaForConditionalGeneration

from demo.prompts import Tokenizer

ROPE_THETA = 10_000.0


def _edit(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_configs(model: Any, tokenizer: Tokenizer, processor: Any, folder: Path) -> None:
    def describe(config: dict[str, Any]) -> None:
        config["architectures"] = [type(model).__name__]
        text = config.get("text_config", config)
        text.pop("_name_or_path", None)
        # The last two are for readers older than transformers 5.
        for each in (config, text, config.get("vision_config", {})):
            each |= {"dtype": "float16", "torch_dtype": "float16"}
        text["rope_theta"] = ROPE_THETA

    def simplify(config: dict[str, Any]) -> None:
        for name in ("backend", "is_local", "local_files_only", "processor_class"):
            config.pop(name, None)
        config["tokenizer_class"] = "PreTrainedTokenizerFast"

    model.config.save_pretrained(folder)
    _edit(folder / "config.json", describe)
    (processor or tokenizer).save_pretrained(folder)
    _edit(folder / "tokenizer_config.json", simplify)
    make: Callable[..., GenerationConfig] = GenerationConfig
    make(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.bos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
    ).save_pretrained(folder)


def load_model(folder: Path) -> Any:
    """The model in the folder, in float32, whether it sees or not."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = LlavaForConditionalGeneration if "vision_config" in config else LlamaForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32)


def save(
    model: LlamaForCausalLM | LlavaForConditionalGeneration,
    tokenizer: Tokenizer,
    target: Path,
    processor: Any = None,
) -> None:
    """Write everything beside the target folder first, then rename file by file into it."""
    target.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        _write_configs(model, tokenizer, processor, made)
        weights = {
            _hub_name(name): tensor.to(torch.float16).contiguous()
            for name, tensor in model.state_dict().items()
            if name != "lm_head.weight"
        }
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        for path in sorted(made.iterdir()):
            path.chmod(0o644)
            path.replace(target / path.name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _hub_name(name: str) -> str:
    """The name of a weight of LLaVA in files, where it is not that in transformers 5."""
    for inner, outer in (
        ("model.language_model.", "language_model.model."),
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ):
        if name.startswith(inner):
            return outer + name.removeprefix(inner)
    return name
