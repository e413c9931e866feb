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
    PreTrainedModel,
)

from backends.checkpoint.defaults import eos_token_ids
from backends.checkpoint.folder import Checkpoint
from backends.checkpoint.quantization import quant_method
from backends.checkpoint.tokenizer import load_tokenizer
from backends.checkpoint.vocabulary import grammar_compiler
from backends.hf import placement
from backends.hf.choose import choose_runner
from backends.hf.engine import HFEngine
from backends.hf.info import model_info
from backends.hf.lora import Adapters
from backends.hf.options import HFOptions
from backends.hf.packed.prepack import prepack
from backends.hf.placement import check_memory, choose_device, choose_dtype
from backends.hf.progress import weights_progress
from backends.hf.sampling_runner import Vocabulary
from enginebay import BackendSettings, BatchLimits, Lora, PromptLookup, ReportProgress, RunnerMemory

logger = logging.getLogger(__name__)

# On a CPU a pass of 1,024 tokens takes a quarter longer than four of 256 (AMX and AVX-512 alike).
_BATCH_TOKENS, _BATCH_TOKENS_GPU = 256, 2048

_PROBE_TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps until noon. "


def load_engine(settings: BackendSettings) -> HFEngine:
    """The engine of one model, on the thread that will run it.

    Every problem with the model is a `BackendUnavailableError`.
    """
    options = HFOptions.of(settings.options)
    checkpoint = Checkpoint(Path(settings.path))
    _check_quantization(checkpoint)
    checkpoint.check()
    _check_architecture(checkpoint, options)
    if options.threads:
        torch.set_num_threads(options.threads)
    settings.report_progress("reading tokenizer", 0.0)
    tokenizer = load_tokenizer(checkpoint, **_trust(options))
    model = _load_model(checkpoint, options, settings.report_progress)
    settings.report_progress("checking the model", 0.95)
    text_config = model.config.get_text_config(decoder=True)
    ends = eos_token_ids(
        (getattr(model, "generation_config", None), model.config, text_config), tokenizer
    )
    if options.prepack:
        _prepack(model)
    adapters = _load_adapters(model, options, Path(settings.base))
    info = model_info(checkpoint, options, text_config, tokenizer)
    token_ids = tokenizer.encode(_PROBE_TEXT * 8, add_special_tokens=True)
    runner = choose_runner(
        model,
        checkpoint,
        options,
        Vocabulary(tokenizer.token_text, info.vocab_size, ends),
        token_ids,
        context_length=info.context_length,
        adapters=adapters,
    )
    engine = HFEngine(
        runner,
        tokenizer,
        info,
        BatchLimits(
            max_batch_size=min(options.max_batch_size, runner.memory.slots),
            batch_tokens=options.batch_tokens
            or (_BATCH_TOKENS if model.device.type == "cpu" else _BATCH_TOKENS_GPU),
            prefill_tokens=options.prefill_tokens,
        ),
        eos_token_ids=ends,
        drafter=_drafter(options, runner.memory),
        compiler=grammar_compiler(tokenizer, info.vocab_size, ends),
        adapters=adapters,
    )
    settings.report_progress("ready", 1.0)
    return engine


def _check_architecture(checkpoint: Checkpoint, options: HFOptions) -> None:
    model_type = checkpoint.config.get("model_type")
    own_code = checkpoint.config.get("auto_map", {})
    if own_code and not options.trust_remote_code and model_type not in CONFIG_MAPPING:
        raise checkpoint.unavailable(
            "it needs Python code from its folder; review it, and if you trust it, set "
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
            f"{checkpoint.architecture} is not a causal language model; choose a model made for "
            "text generation"
        )


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
            f"its weights lack {len(missing)} tensors of a language model, such as {missing[0]}; "
            "download it again, or choose a model made for text generation"
        )
    return model


def _check_quantization(checkpoint: Checkpoint) -> None:
    """Raise for formats that transformers ignores and then fails to find the weights of."""
    method = quant_method(checkpoint.path)
    if method in ("exl2", "exl3"):
        other = "; use the backend exllamav2" if method == "exl2" else ""
        raise checkpoint.unavailable(
            f"its weights are quantized by {method}, which transformers does not read{other}"
        )


def _drafter(options: HFOptions, memory: RunnerMemory) -> PromptLookup | None:
    if options.prompt_lookup and not memory.cuts:
        logger.warning("prompt lookup disabled: this model's cache cannot be rolled back")
    return PromptLookup(options.prompt_lookup) if options.prompt_lookup and memory.cuts else None


def _prepack(model: PreTrainedModel) -> None:
    """Prepack where it is faster; in float32 the weights are kept twice, which must fit."""
    free = placement.free_memory(torch.device("cpu"))
    doubled = model.dtype == torch.float32 and model.device.type == "cpu"
    weights = sum(parameter.nbytes for parameter in model.parameters())
    if doubled and free is not None and 2 * weights > free:
        return
    if layers := prepack(model):
        logger.info("%d layers are prepacked for this processor", layers)


def _load_adapters(model: PreTrainedModel, options: HFOptions, folder: Path) -> Adapters:
    """The adapters of the options, whose relative paths start at `folder`."""
    adapters = Adapters(model)
    for name, path in options.adapters.items():
        adapters.load(name, [Lora(str(folder / Path(path).expanduser()))])
    return adapters


def _trust(options: HFOptions) -> dict[str, Any]:
    return {"trust_remote_code": options.trust_remote_code, "local_files_only": True}
