"""What a model folder is for, if not for text: embeddings, classes, or scores."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay import BackendUnavailableError
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.options import HFOptions
from enginebay_hf.pooling.sentence import (
    Dense,
    LogitScore,
    Normalize,
    SentenceFolder,
    read_sentence_folder,
)

logger = logging.getLogger(__name__)

VALUE_HEADS = ("value_head.safetensors", "value_head.bin")
"""Where LLaMA-Factory writes the head of a reward model."""

_ADAPTER = "adapter_config.json"
_CLASSIFIERS = ("ForSequenceClassification",)
_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining")
_MODE_OF_OPTION = {"mean": "mean", "cls": "cls", "last": "lasttoken"}


@dataclass(frozen=True, slots=True)
class Embeds:
    """An embedding of the hidden states: their poolings, joined, and then the steps."""

    modes: tuple[str, ...]
    steps: tuple[Dense | Normalize, ...] = ()


@dataclass(frozen=True, slots=True)
class Classifies:
    """A classification head; with one output it scores."""


@dataclass(frozen=True, slots=True)
class Answers:
    """A language model that answers whether a document fits a query; Qwen3-Reranker's tokens if
    `score` names none.
    """

    score: LogitScore | None


@dataclass(frozen=True, slots=True)
class Values:
    """A language model with the value head in a file and, unless trained in full, a LoRA."""

    head: Path
    lora: Path | None


Purpose = Embeds | Classifies | Answers | Values


@dataclass(frozen=True, slots=True)
class PoolingFolder:
    """A model that generates nothing, and the folder of its transformer."""

    checkpoint: Checkpoint
    purpose: Purpose
    said: SentenceFolder
    root: Path


def pooling_folder(path: Path, base: Path, options: HFOptions) -> PoolingFolder | None:
    """What the folder and the options say; None for a model that generates text.

    Relative paths start at `base`. Raises `BackendUnavailableError` for what is not supported.
    """
    if options.embeddings is False:
        return None
    root = Checkpoint(path)
    if (values := _values(path, base, options)) is not None:
        model = _model_of(root, base)
        return PoolingFolder(model, values, SentenceFolder(), path)
    said = read_sentence_folder(root)
    checkpoint = Checkpoint(path / said.transformer) if said else root
    if not (checkpoint.path / "config.json").is_file():
        return None  # refused like any such folder
    purpose = _purpose(checkpoint, said, options)
    if purpose is None:
        if options.matryoshka:
            raise checkpoint.unavailable(
                "matryoshka is for embeddings, but this model generates text; remove it, or set "
                "embeddings: true"
            )
        return None
    return PoolingFolder(checkpoint, purpose, said or SentenceFolder(), path)


def _purpose(
    checkpoint: Checkpoint, said: SentenceFolder | None, options: HFOptions
) -> Purpose | None:
    architecture = next(iter(checkpoint.config.get("architectures") or ()), "")
    classifies = architecture.endswith(_CLASSIFIERS)
    if options.pooling == "rank":
        if classifies:
            return Classifies()
        if architecture.endswith(_TEXT) or (said and said.logit_score):
            return Answers(said.logit_score if said else None)
        raise checkpoint.unavailable(
            f"{checkpoint.architecture} has no head to rerank with; remove pooling: rank"
        )
    if classifies and (options.embeddings or options.pooling):
        raise checkpoint.unavailable(
            f"{checkpoint.architecture} is a classifier; remove embeddings and pooling"
        )
    if said and said.logit_score:
        return Answers(said.logit_score)
    if said and (said.modes or options.pooling):
        modes = (_MODE_OF_OPTION[options.pooling],) if options.pooling else said.modes
        return _embeds(checkpoint, said, modes)
    if classifies:
        return Classifies()
    generates = (
        not architecture.endswith(_ENCODERS)
        or architecture.endswith(_TEXT)
        or "AutoModelForCausalLM" in checkpoint.config.get("auto_map", {})
    )
    if options.pooling or options.embeddings:
        pooling = options.pooling or ("last" if architecture.endswith(_TEXT) else "mean")
        return _embeds(checkpoint, said, (_MODE_OF_OPTION[pooling],))
    if generates:
        return None
    logger.warning(
        "%s says nothing of pooling: an embedding is the mean of the hidden states; set pooling to "
        "mean, cls or last, as the model was trained",
        checkpoint.path,
    )
    return Embeds(("mean",))


def _embeds(checkpoint: Checkpoint, said: SentenceFolder | None, modes: tuple[str, ...]) -> Embeds:
    if said and said.messages:
        raise checkpoint.unavailable(
            "it puts texts into a chat template before it embeds them (`message` in the "
            "modality_config of its Transformer), which is not supported"
        )
    return Embeds(modes, said.steps if said else ())


def _values(path: Path, base: Path, options: HFOptions) -> Values | None:
    asked = options.value_head
    folder = base / Path(asked).expanduser() if asked else path
    files = [folder] if folder.is_file() else [folder / name for name in VALUE_HEADS]
    head = next((file for file in files if file.is_file()), None)
    if head is None or (options.pooling and not asked):
        if asked:
            raise BackendUnavailableError(
                f"{folder} has no {VALUE_HEADS[0]}; value_head is the folder or file of a reward "
                "model made by LLaMA-Factory"
            )
        return None
    has_lora = (head.parent / _ADAPTER).is_file()
    return Values(head, head.parent if has_lora else None)


def _model_of(root: Checkpoint, base: Path) -> Checkpoint:
    """The model that a folder of a LoRA was made for; any other folder is one."""
    if not (root.path / _ADAPTER).is_file() or (root.path / "config.json").is_file():
        return root
    config: Mapping[str, Any] = root.read_json(_ADAPTER)
    name = str(config.get("base_model_name_or_path"))
    model = base / Path(name).expanduser()
    if not model.is_dir():
        raise root.unavailable(
            f"it is a LoRA of {name}, which is not a folder here; set path to the folder of that "
            "model, and value_head to this one"
        )
    return Checkpoint(model)
