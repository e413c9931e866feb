"""The `ModelInfo` of a model that generates nothing."""

from typing import Any

from torch import nn

from enginebay import ModelInfo
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.options import HFOptions
from enginebay_hf.pooling.folder import Embeds, PoolingFolder
from enginebay_hf.sizing import context_length

_POSITIONS = "position_embeddings"


def pooling_info(
    folder: PoolingFolder,
    options: HFOptions,
    model: Any,
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    *,
    outputs: int,
    reranks: bool,
) -> ModelInfo:
    """`outputs`: how many numbers the model has for a text."""
    embeds = isinstance(folder.purpose, Embeds)
    if options.matryoshka and not embeds:
        raise folder.checkpoint.unavailable(
            "matryoshka is for embeddings, which this model does not make; remove it"
        )
    problem_type = getattr(model.config, "problem_type", None)
    return ModelInfo(
        context_length=_longest(folder, options, model, tokenizer),
        vocab_size=model.get_input_embeddings().weight.shape[0],
        longest_token=tokenizer.longest_token,
        special_tokens=tokenizer.special_tokens,
        embedding_size=outputs if embeds else None,
        shorter_embeddings=_shorter(folder, options, outputs) if embeds else None,
        prompts=folder.said.prompts if embeds else {},
        default_prompt=folder.said.default_prompt if embeds else None,
        reranks=reranks,
        labels=labels,
        multi_label=problem_type == "multi_label_classification" and len(labels) > 1,
        max_batch_size=options.max_batch_size,
        generates=False,
    )


def _longest(folder: PoolingFolder, options: HFOptions, model: Any, tokenizer: Tokenizer) -> int:
    """Tokens of the longest text: the folder's unless the options say, and never too many."""
    config = model.config.get_text_config()
    most = context_length(folder.checkpoint, options, config)
    if options.context_length is None:
        said = (folder.said.length, tokenizer.longest_text)
        most = min([most, *(length for length in said if length)])
    return min([most, *_positions(model)])


def _positions(model: nn.Module) -> list[int]:
    """How many positions there are where the first ones stand for padding (RoBERTa)."""
    return [
        module.num_embeddings - module.padding_idx - 1
        for name, module in model.named_modules()
        if name.endswith(_POSITIONS)
        and isinstance(module, nn.Embedding)
        and module.padding_idx is not None
    ]


def _shorter(folder: PoolingFolder, options: HFOptions, size: int) -> tuple[int, ...] | None:
    """What the options say, else `config.json` in vLLM's words."""
    config = folder.checkpoint.config
    said = config.get("matryoshka_dimensions") or bool(config.get("is_matryoshka"))
    chosen = said if options.matryoshka is None else options.matryoshka
    if isinstance(chosen, bool):
        return () if chosen else None
    if too_long := [length for length in chosen if length > size]:
        raise folder.checkpoint.unavailable(
            f"matryoshka has {too_long[0]}, but its embeddings have {size} numbers"
        )
    return tuple(chosen)
