"""The head of a model and how it takes pairs, from what its folder says."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from enginebay import Lora, PairEncoder, sigmoid
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.lora import Adapters
from enginebay_hf.pooling.folder import Answers, Classifies, Embeds, PoolingFolder, Values
from enginebay_hf.pooling.heads import (
    AnswerHead,
    ClassifierHead,
    DenseStep,
    EmbeddingHead,
    Head,
    NormalizeStep,
    ValueHead,
)
from enginebay_hf.pooling.pairs import (
    QWEN3_RERANKER,
    TemplatePairs,
    TokenizedPairs,
    template_of,
)
from enginebay_hf.pooling.sentence import Dense, LogitScore

_LORA = "value head"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A head and what an engine needs beside it.

    `pairs`: None for a model that does not rerank. `separator` and `adapted`: of `HFPooler`.
    """

    head: Head
    labels: tuple[str, ...] = ()
    pairs: PairEncoder | None = None
    relevance: Callable[[NDArray[Any]], float] = sigmoid
    separator: int | None = None
    adapted: Callable[[], AbstractContextManager[None]] = nullcontext


def build(folder: PoolingFolder, model: Any, tokenizer: Tokenizer) -> Built:
    """`BackendUnavailableError` for what does not fit together."""
    match folder.purpose:
        case Embeds(modes, steps):
            made = [
                _dense(folder, step, model.device) if isinstance(step, Dense) else NormalizeStep()
                for step in steps
            ]
            return Built(head=EmbeddingHead(model, modes, made))
        case Classifies():
            return _classifier(folder, model, tokenizer)
        case Answers(score):
            pairs, ids = _answer_pairs(folder, tokenizer, score)
            relevance = _relevance(folder)
            return Built(head=AnswerHead(model, *ids), pairs=pairs, relevance=relevance)
        case Values(file, lora):
            adapters = Adapters(model)
            if lora:
                adapters.load(_LORA, [Lora(str(lora))])
            return Built(
                head=ValueHead(model, _value_head(folder, file, model)),
                labels=("score",),
                adapted=partial(adapters.applied, [_LORA]) if lora else nullcontext,
            )


def _classifier(folder: PoolingFolder, model: Any, tokenizer: Tokenizer) -> Built:
    labels = tuple(model.config.id2label[i] for i in range(model.config.num_labels))
    head = ClassifierHead(model)
    if len(labels) > 1:
        return Built(head=head, labels=labels)
    pairs = TokenizedPairs(tokenizer, folder.said.prompt)
    types = "token_type_ids" in signature(model.forward).parameters
    segments = types and getattr(model.config, "type_vocab_size", 0) > 1
    made_for_pairs = "sentence_transformers" in folder.checkpoint.config or not head.causal
    reranks = made_for_pairs or pairs.separated
    return Built(
        head=head,
        labels=labels,
        pairs=(_template_pairs(folder, tokenizer) if folder.said.messages else pairs)
        if reranks
        else None,
        relevance=_relevance(folder),
        separator=pairs.separator if segments else None,
    )


def _answer_pairs(
    folder: PoolingFolder, tokenizer: Tokenizer, score: LogitScore | None
) -> tuple[PairEncoder, tuple[int, int | None]]:
    """The pairs and the tokens of a yes and a no."""
    if score is None:
        ids = [tokenizer.encode_plain(text, add_special_tokens=False) for text in ("yes", "no")]
        starts = tokenizer.encode("<|im_start|>", add_special_tokens=False)
        if any(len(answer) != 1 for answer in ids) or len(starts) != 1:
            raise folder.checkpoint.unavailable(
                "pooling: rank makes a language model answer the prompt of Qwen3-Reranker, which "
                "needs the tokens `yes`, `no` and `<|im_start|>`; its tokenizer lacks some of them"
            )
        return TemplatePairs(tokenizer, QWEN3_RERANKER), (ids[0][0], ids[1][0])
    pairs = (
        _template_pairs(folder, tokenizer)
        if folder.said.messages
        else TokenizedPairs(tokenizer, folder.said.prompt)
    )
    return pairs, (score.true_token_id, score.false_token_id)


def _template_pairs(folder: PoolingFolder, tokenizer: Tokenizer) -> TemplatePairs:
    try:
        return TemplatePairs(tokenizer, template_of(tokenizer, folder.said))
    except Exception as error:
        raise folder.checkpoint.unavailable(
            f"its chat template does not take a query and a document: {error}"
        ) from error


def _relevance(folder: PoolingFolder) -> Callable[[NDArray[Any]], float]:
    config = folder.checkpoint.config
    named = (
        folder.said.activation
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
        or "torch.nn.modules.activation.Sigmoid"
    )
    known: dict[str, Callable[[NDArray[Any]], float]] = {"Sigmoid": sigmoid, "Identity": _first}
    if relevance := known.get(named.rpartition(".")[2]):
        return relevance
    raise folder.checkpoint.unavailable(
        f"its activation_fn {named} is not supported; supported are Sigmoid and Identity"
    )


def _first(row: NDArray[Any]) -> float:
    return float(row[0])


def _dense(folder: PoolingFolder, dense: Dense, device: torch.device) -> nn.Module:
    config = dense.config
    sizes = config["in_features"], config["out_features"]
    linear = nn.Linear(*sizes, bias=config.get("bias", True))
    residual: nn.Module | None = None
    if config.get("use_residual"):
        same = sizes[0] == sizes[1]
        residual = nn.Identity() if same else nn.Linear(*sizes, bias=False)
    tensors = _tensors(folder, folder.root / dense.path, "model.safetensors", "pytorch_model.bin")
    try:
        linear.load_state_dict(_of("linear.", tensors))
        if isinstance(residual, nn.Linear):
            residual.load_state_dict(_of("residual.", tensors))
    except RuntimeError as error:
        raise folder.checkpoint.unavailable(f"the weights of {dense.path}: {error}") from error
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = (
        getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    )
    if activation is None:
        raise folder.checkpoint.unavailable(
            f"the activation_function {name} of {dense.path} is not supported"
        )
    return DenseStep(linear, activation(), residual).eval().to(device)


def _value_head(folder: PoolingFolder, file: Path, model: Any) -> nn.Linear:
    tensors = _of("v_head.summary.", _tensors(folder, file.parent, file.name))
    linear = nn.Linear(model.config.get_text_config().hidden_size, 1)
    try:
        linear.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise folder.checkpoint.unavailable(
            f"{file} is not a value head of this model: {error}"
        ) from error
    return linear.to(model.device)


def _tensors(folder: PoolingFolder, path: Path, *names: str) -> dict[str, Tensor]:
    file = next((path / name for name in names if (path / name).is_file()), path / names[0])
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        loaded: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return loaded
    except Exception as error:
        raise folder.checkpoint.unavailable(f"{file} cannot be read: {error}") from error


def _of(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
