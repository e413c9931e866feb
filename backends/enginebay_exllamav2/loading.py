"""From a model folder to an engine, or to an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from enginebay import BackendSettings, BackendUnavailableError, BatchLimits
from enginebay_checkpoint.defaults import eos_token_ids
from enginebay_checkpoint.tokenizer import load_tokenizer
from enginebay_checkpoint.vocabulary import grammar_compiler
from enginebay_exllamav2.build import build_folder, building
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.info import UNSUPPORTED, model_info
from enginebay_exllamav2.options import ExLlamaV2Options
from enginebay_exllamav2.requirements import check_library

if TYPE_CHECKING:
    from enginebay_exllamav2.engine import ExLlamaV2Engine


def load_engine(settings: BackendSettings) -> ExLlamaV2Engine:
    """The engine of one model, on the thread that will run it.

    Every problem with the model or the machine is a `BackendUnavailableError`.
    """
    options = ExLlamaV2Options.of(settings.options)
    check_library(build_extension=options.build_extension)
    checkpoint = ExLlamaV2Checkpoint(Path(settings.path))
    checkpoint.check()
    settings.report_progress("reading tokenizer", 0.0)
    tokenizer = load_tokenizer(checkpoint, local_files_only=True)
    # Only now may the library be imported: without what was checked, its import goes wrong.
    try:
        with building(settings.report_progress):
            from enginebay_exllamav2.engine import ExLlamaV2Engine
    except ImportError as error:
        raise BackendUnavailableError(
            f"exllamav2 cannot be imported ({error}); if its extension was compiled for another "
            f"torch, remove {build_folder()}, set build_extension: true and start again"
        ) from error
    from enginebay_exllamav2.model import load_model

    if settings.isolation != "thread":
        torch.set_num_threads(1)  # the GPU computes; small tensors on many threads are slow
    model = load_model(
        checkpoint, options, Path(settings.base), tokenizer, settings.report_progress
    )
    ends = eos_token_ids(_owners(checkpoint), tokenizer)
    info = model_info(
        checkpoint,
        tokenizer,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        adapters=model.adapters.names,
        unsupported=UNSUPPORTED,
        sees=model.pictures.family if model.pictures else None,
    )
    engine = ExLlamaV2Engine(
        model,
        tokenizer,
        info,
        BatchLimits(max_batch_size=model.max_batch_size),
        eos_token_ids=ends,
        compiler=grammar_compiler(tokenizer, info.vocab_size, ends),
    )
    settings.report_progress("ready", 1.0)
    return engine


def _owners(checkpoint: ExLlamaV2Checkpoint) -> list[SimpleNamespace]:
    """The configurations that may name end-of-sequence tokens."""
    text = checkpoint.config.get("text_config")
    configs = (checkpoint.generation_config, checkpoint.config, text or {})
    return [SimpleNamespace(eos_token_id=config.get("eos_token_id")) for config in configs]
