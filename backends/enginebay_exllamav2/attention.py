"""Chooses the function for attention over the paged cache: flash-attention's, or ours."""

import logging
from typing import Any

import torch

from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.library import attention
from enginebay_exllamav2.options import ExLlamaV2Options
from enginebay_exllamav2.paged_attention import paged_attention

logger = logging.getLogger(__name__)


def choose_attention(
    checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options, config: Any
) -> None:
    """Set the library to flash-attention if it is installed and supports the model, else to ours.

    The library has one function for all models of a process. `config` is its `ExLlamaV2Config`.
    """
    reason = _why_not_flash(options, config)
    if reason and options.flash_attention == "on":
        raise checkpoint.unavailable(f"flash_attention is on, but {reason}; set it to auto")
    if reason is None:
        logger.info("%s: using flash-attn", checkpoint.path)
        return
    if options.tensor_parallel:
        raise checkpoint.unavailable(f"tensor_parallel needs flash-attn, but {reason}")
    if not options.paged and config.arch.lm.alternating_swa and config.sliding_window:
        raise checkpoint.unavailable(
            f"its sliding windows need a paged cache or flash-attn, but {reason}; set paged: true"
        )
    if options.paged:
        attention.flash_attn_with_kvcache = paged_attention
        attention.has_flash_attn_with_paged = True
        attention.has_flash_attn_with_window = True
        attention.has_flash_attn_with_softcap = True
    attention.has_flash_attn = False
    logger.info(
        "%s: using torch attention because %s; answers are the same, long contexts are slower",
        checkpoint.path,
        reason,
    )


def _why_not_flash(options: ExLlamaV2Options, config: Any) -> str | None:
    """None if flash-attention can be used."""
    if options.flash_attention == "off":
        return "flash_attention is off"
    if not (attention.has_flash_attn and attention.has_flash_attn_with_paged):
        return "flash-attn 2.5.7 or later is not installed (pip install flash-attn)"
    devices = range(torch.cuda.device_count())
    if any(torch.cuda.get_device_capability(device) < (8, 0) for device in devices):
        return "flash-attn needs GPUs of the Ampere generation or later"
    windows = config.arch.lm.alternating_swa and config.sliding_window
    if windows and not attention.has_flash_attn_with_window:
        return "this flash-attn does not support sliding windows; install a newer one"
    if config.attn_logit_softcapping and not attention.has_flash_attn_with_softcap:
        return "this flash-attn does not support softcapping; install a newer one"
    return None
