"""A model's configuration and weights from its folder, or an error that says what to do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

from enginebay import ReportProgress
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.libraries import loaded_of
from enginebay_checkpoint.quantization import quant_method
from enginebay_hf.options import HFOptions
from enginebay_hf.placement import check_memory, choose_device, max_memory
from enginebay_hf.progress import weights_progress


def check_files(checkpoint: Checkpoint) -> None:
    """Raise for what is missing or damaged, and for formats that transformers does not read."""
    method = quant_method(checkpoint.path)
    if method in ("exl2", "exl3"):
        other = "; use the backend exllamav2" if method == "exl2" else ""
        raise checkpoint.unavailable(
            f"its weights are quantized by {method}, which transformers does not read{other}"
        )
    checkpoint.check()


def read_config(checkpoint: Checkpoint, options: HFOptions) -> PretrainedConfig:
    """transformers' configuration of the model."""
    model_type = checkpoint.config.get("model_type")
    own_code = checkpoint.config.get("auto_map", {})
    if own_code and not options.trust_remote_code and model_type not in CONFIG_MAPPING:
        raise checkpoint.unavailable(
            "it needs Python code from its folder; review it, and if you trust it, set "
            "trust_remote_code: true in the options of its entry in config.yml"
        )
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(checkpoint.path, **trust(options))
    except Exception as error:
        raise checkpoint.unavailable(
            f"transformers {transformers.__version__} does not understand its config.json "
            f"(model_type {model_type!r}): {error}"
        ) from error
    return config


def load_model(
    checkpoint: Checkpoint,
    options: HFOptions,
    dtype: torch.dtype | None,
    report_progress: ReportProgress,
    from_pretrained: Callable[..., Any],
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model, and the names of its tensors that the folder lacks.

    `dtype` is None for a checkpoint that stays as it is stored. `from_pretrained` is the method of
    a class of transformers, such as `AutoModelForCausalLM`.
    """
    arguments: dict[str, Any] = trust(options)
    device = choose_device(checkpoint, options)
    if options.device_map is not None:
        arguments["device_map"] = options.device_map
        if options.device_map == "auto":
            arguments["max_memory"] = max_memory(checkpoint, options, device)
    else:
        check_memory(checkpoint, device, dtype)
        if device.type != "cpu":
            arguments["device_map"] = {"": device}
    if options.attn_implementation:
        arguments["attn_implementation"] = options.attn_implementation
    size = checkpoint.stored_bytes

    def report(done: float) -> None:
        report_progress(loaded_of("loading weights", done, size), min(0.05 + 0.9 * done, 0.95))

    progress = weights_progress(report)
    try:
        with progress, _without_report():
            loaded: Any = from_pretrained(
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
    return loaded[0], sorted(loaded[1]["missing_keys"])


@contextmanager
def _without_report() -> Iterator[None]:
    """Keep transformers from logging what tensors are missing or too many: callers decide."""
    logger = logging.getLogger("transformers.modeling_utils")

    def wanted(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def trust(options: HFOptions) -> dict[str, Any]:
    """Arguments of everything that transformers reads from a folder."""
    return {"trust_remote_code": options.trust_remote_code, "local_files_only": True}
