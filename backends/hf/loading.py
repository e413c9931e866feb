"""From a model folder to an engine, or to an error that says what to do."""

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from backends.hf.checkpoint import Checkpoint
from backends.hf.engine import HFEngine
from backends.hf.info import eos_token_ids, model_info
from backends.hf.options import HFOptions
from backends.hf.placement import check_memory, choose_device, choose_dtype
from backends.hf.probe import TOKENS, Ability, probe
from backends.hf.progress import weights_progress
from backends.hf.runner import ModelRunner
from backends.hf.tokenizer import Tokenizer
from enginebay import BackendSettings, ReportProgress

logger = logging.getLogger(__name__)

_PROBE_TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps until noon. "


def load_engine(settings: BackendSettings) -> HFEngine:
    """The engine of one model, on the thread that will run it.

    Everything that can be wrong with a model is a `BackendUnavailableError`.
    """
    options = HFOptions.of(settings.options)
    checkpoint = Checkpoint(Path(settings.path))
    checkpoint.check()
    _check_architecture(checkpoint, options)
    if options.threads:
        torch.set_num_threads(options.threads)
    settings.report_progress("reading tokenizer", 0.0)
    tokenizer = _load_tokenizer(checkpoint, options)
    model = _load_model(checkpoint, options, settings.report_progress)
    settings.report_progress("checking the model", 0.95)
    text_config = model.config.get_text_config(decoder=True)
    info = model_info(checkpoint, options, text_config, tokenizer)
    runner = ModelRunner(model)
    engine = HFEngine(
        runner,
        tokenizer,
        info,
        eos_token_ids=eos_token_ids(
            (getattr(model, "generation_config", None), model.config, text_config), tokenizer
        ),
        max_batch_size=_batch_size(checkpoint, options, runner, tokenizer),
        max_waiting=options.max_waiting,
    )
    settings.report_progress("ready", 1.0)
    return engine


def _check_architecture(checkpoint: Checkpoint, options: HFOptions) -> None:
    model_type = checkpoint.config.get("model_type")
    own_code = checkpoint.config.get("auto_map", {})
    if own_code and not options.trust_remote_code and model_type not in CONFIG_MAPPING:
        raise checkpoint.unavailable(
            "it needs Python code that lies in its folder; read it, and if you trust it set "
            "trust_remote_code: true in the model's options"
        )
    try:
        config = AutoConfig.from_pretrained(checkpoint.path, **_trust(options))
    except Exception as error:
        raise checkpoint.unavailable(
            f"transformers {transformers.__version__} does not understand its config.json "
            f"(model_type {model_type!r}): {error}"
        ) from error
    kinds = {type(config), type(config.get_text_config(decoder=True))}
    known = any(kind in MODEL_FOR_CAUSAL_LM_MAPPING for kind in kinds)
    if getattr(config, "is_encoder_decoder", False) or not (
        known or "AutoModelForCausalLM" in own_code
    ):
        raise checkpoint.unavailable(
            f"{_architecture(checkpoint)} is not a causal language model; choose a model made for "
            "text generation"
        )


def _load_tokenizer(checkpoint: Checkpoint, options: HFOptions) -> Tokenizer:
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(checkpoint.path, **_trust(options)))
    except Exception as error:
        raise checkpoint.unavailable(f"its tokenizer cannot be read: {error}") from error


def _load_model(
    checkpoint: Checkpoint, options: HFOptions, report_progress: ReportProgress
) -> PreTrainedModel:
    arguments: dict[str, Any] = _trust(options)
    device = choose_device(checkpoint, options)
    dtype = choose_dtype(checkpoint, options, device)
    if options.device_map is not None:
        arguments["device_map"] = options.device_map
    else:
        check_memory(checkpoint, device, dtype)
        if device.type != "cpu":
            arguments["device_map"] = {"": device}
    if options.attn_implementation:
        arguments["attn_implementation"] = options.attn_implementation
    try:
        with weights_progress(
            lambda done: report_progress("loading weights", min(0.05 + 0.9 * done, 0.95))
        ):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                checkpoint.path, dtype=dtype or "auto", output_loading_info=True, **arguments
            )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise checkpoint.unavailable(
            f"there is not enough memory on {device} ({error}); use a smaller or quantized model"
        ) from error
    except SafetensorError as error:
        raise checkpoint.unavailable(
            f"its weights are damaged ({error}); download them again"
        ) from error
    except Exception as error:
        raise checkpoint.unavailable(
            f"transformers cannot load it: {type(error).__name__}: {error}"
        ) from error
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise checkpoint.unavailable(
            f"its weights lack {len(missing)} tensors of a language model, {missing[0]} for one; "
            "download it again, or choose a model made for text generation"
        )
    return model


def _batch_size(
    checkpoint: Checkpoint, options: HFOptions, runner: ModelRunner, tokenizer: Tokenizer
) -> int:
    token_ids = tokenizer.encode(_PROBE_TEXT * TOKENS, add_special_tokens=True)[:TOKENS]
    try:
        ability = probe(runner, token_ids)
    except Exception as error:
        raise checkpoint.unavailable(
            f"the model fails to run: {type(error).__name__}: {error}"
        ) from error
    if ability == Ability.NONE:
        raise checkpoint.unavailable(
            f"{_architecture(checkpoint)} in {runner.dtype} does not continue a text from its "
            "cache as it should: it is not a causal language model, or needs another dtype"
        )
    if ability == Ability.ONE_ROW and options.max_batch_size > 1:
        logger.warning(
            "%s: rows of different lengths disturb each other in this architecture, "
            "so it answers one request at a time",
            checkpoint.path,
        )
        return 1
    return options.max_batch_size


def _architecture(checkpoint: Checkpoint) -> str:
    return ", ".join(checkpoint.config.get("architectures") or ["this architecture"])


def _trust(options: HFOptions) -> dict[str, Any]:
    return {"trust_remote_code": options.trust_remote_code, "local_files_only": True}
