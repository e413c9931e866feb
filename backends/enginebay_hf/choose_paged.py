"""A runner with a paged KV cache, if its logits match the model's."""

import logging
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.lora import Adapters
from enginebay_hf.media.inputs import MediaInputs
from enginebay_hf.options import HFOptions
from enginebay_hf.packed.graphs import Capture
from enginebay_hf.packed.memory import bytes_per_token
from enginebay_hf.packed.paged_attention import Kernel, NotPagedError
from enginebay_hf.packed.paged_probe import capture_decoding, probe_paged
from enginebay_hf.packed.paged_runner import PagedRunner
from enginebay_hf.packed.pages import PAGE_SIZE
from enginebay_hf.packed.switching import implementations
from enginebay_hf.placement import free_memory
from enginebay_hf.sampling_runner import Vocabulary
from enginebay_hf.sizing import paged_sizes

logger = logging.getLogger(__name__)


def paged_runner(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    options: HFOptions,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    kernels: Sequence[Kernel],
    capture: Capture,
    *,
    context_length: int,
    adapters: Adapters | None = None,
    media: MediaInputs | None = None,
    page_size: int = PAGE_SIZE,
) -> PagedRunner:
    """A runner with the first of `kernels` that is correct; decoding is captured if possible.

    `token_ids` is ordinary text to try it with. A `NotPagedError` says why there is none; the model
    is then as it was.
    """
    unpacked = implementations(model.config)
    reasons = []
    for kernel in kernels:
        verdict = probe_paged(
            model, token_ids, kernel, context_length=context_length, page_size=page_size
        )
        if verdict.layers:
            break
        reasons.append(verdict.reason)
    else:
        raise NotPagedError("; ".join(dict.fromkeys(reasons)))
    per_token = bytes_per_token(verdict.layers.values())
    sizes = paged_sizes(
        checkpoint,
        options,
        context_length=context_length,
        bytes_per_token=per_token,
        device=str(model.device),
        free=free_memory(model.device),
        page_size=page_size,
    )
    try:
        if not sizes:
            raise NotPagedError("there is not enough memory")
        runner = PagedRunner(
            model,
            verdict.layers,
            vocabulary,
            kernel,
            slots=sizes.slots,
            capacity=sizes.capacity,
            pages=sizes.pages,
            page_size=page_size,
            adapters=adapters,
            media=media,
            decoder=verdict.decoder,
        )
    except (NotPagedError, torch.OutOfMemoryError) as error:
        model.set_attn_implementation(unpacked)
        raise NotPagedError(str(error)) from error
    rows = min(options.max_batch_size, sizes.slots)
    reason = capture_decoding(runner, capture, token_ids, rows=rows, dtype=model.dtype)
    decoding = f"without CUDA graphs, because {reason}" if reason else "with CUDA graphs"
    logger.debug(
        "%s: packed forward passes over pages (logits agree within %.1g standard deviations), "
        "decoding %s; KV cache of %d tokens, %.2f GiB",
        checkpoint.path,
        verdict.distance,
        decoding,
        sizes.tokens,
        sizes.pages * page_size * per_token / 2**30,
    )
    return runner
