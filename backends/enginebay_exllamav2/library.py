"""The only place that imports exllamav2, whose import compiles, prints and fails in many ways.

Import this only after `requirements.check_library`: without the compiled extension the import
itself would compile for minutes, or fail inside torch.
"""

import importlib
import logging
import os
from typing import Any

import torch

from enginebay import BackendUnavailableError
from enginebay_exllamav2.build import build_folder
from enginebay_exllamav2.rope import Rope

logger = logging.getLogger(__name__)

# What an import is known to end with: no CUDA_HOME, no GPU to compile for, an extension made for
# another Python or torch, a compiler's error, a library that is not found.
_IMPORT_ERRORS = (OSError, IndexError, NameError, RuntimeError, ImportError)


def _import_library() -> tuple[Any, Any, Any, Any]:
    """`exllamav2`, its `generator`, `attn` and `vlm`; torch's threads are as before."""
    threads = torch.get_num_threads()
    leave_broken_flash_attention()
    try:
        names = ("exllamav2", "exllamav2.generator", "exllamav2.attn", "exllamav2.vlm")
        library, generator, attention, vision = map(importlib.import_module, names)
    except _IMPORT_ERRORS as error:
        raise BackendUnavailableError(
            f"exllamav2 cannot be imported ({type(error).__name__}: {error}); its compiled "
            "extension must have been built for this Python and this torch: if it is an old one, "
            f"delete {build_folder()}, or install another, and set build_extension: true in the "
            "model's options; see docs/guides/exllamav2.md"
        ) from error
    finally:
        torch.set_num_threads(threads)
    return library, generator, attention, vision


def leave_broken_flash_attention() -> None:
    """Hide a flash-attn that was built for another torch; the library would fail on it."""
    try:
        importlib.import_module("flash_attn")
    except ModuleNotFoundError:
        return
    except (ImportError, OSError) as error:
        logger.warning(
            "flash-attn cannot be imported and is not used (%s); install one that was built for "
            "torch %s",
            error,
            torch.__version__,
        )
        os.environ["EXLLAMA_NO_FLASH_ATTN"] = "1"


def _frequencies(device: Any, config: Any, base: float) -> tuple[Any, float]:
    """By the `Rope` that `library_config` gives a configuration; one without is the library's."""
    rope: Rope | None = getattr(config, "rope", None)
    if rope is None:
        theirs: tuple[Any, float] = _library_frequencies(device, config, base)
        return theirs
    local = base == config.rotary_embedding_base_alt != config.rotary_embedding_base
    chosen = Rope(alpha=rope.alpha) if local else rope
    dims = int(config.head_dim * config.partial_rotary_factor)
    frequencies, scale = chosen.frequencies(base, dims)
    if config.arch.lm.rope_freq_half:
        frequencies = frequencies.half()
    return frequencies.to(device), scale


exllamav2, generator, attention, vision = _import_library()
_library_frequencies = exllamav2.rope.get_rope_params
exllamav2.rope.get_rope_params = _frequencies
