"""How a model can batch requests, found by trying it."""

import logging
import sys
from collections.abc import Sequence

from transformers import PreTrainedModel

from backends.checkpoint.folder import Checkpoint
from backends.hf.choose_paged import paged_runner
from backends.hf.lora import Adapters
from backends.hf.native import probe as native
from backends.hf.native.forward import Forward
from backends.hf.native.runner import NativeRunner
from backends.hf.options import HFOptions
from backends.hf.packed import probe as packed
from backends.hf.packed.graphs import CudaCapture
from backends.hf.packed.memory import bytes_per_token
from backends.hf.packed.paged_attention import NotPagedError, find_kernels
from backends.hf.packed.runner import PackedRunner
from backends.hf.sampling_runner import SamplingRunner, Vocabulary
from backends.hf.sizing import memory_sizes

logger = logging.getLogger(__name__)


def choose_runner(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    options: HFOptions,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    *,
    context_length: int,
    adapters: Adapters | None,
) -> SamplingRunner:
    """The best runner whose logits match the model's: packed, padded rows, or one row.

    `token_ids` is ordinary text to try it with. A `BackendUnavailableError` if none matches, or if
    the one set in the options does not.
    """
    model.train(False)
    if paged := _paged_runner(
        model,
        checkpoint,
        options,
        vocabulary,
        token_ids,
        context_length=context_length,
        adapters=adapters,
    ):
        return paged
    verdict = _probe_packed(model, options, token_ids)
    if verdict.layers:
        per_token = bytes_per_token(verdict.layers.values())
        device = next(iter(verdict.layers.values())).device
        sizes = memory_sizes(
            checkpoint,
            options,
            context_length=context_length,
            bytes_per_token=per_token,
            device=device,
            lazy=sys.platform == "linux" and device.type == "cpu",
        )
        logger.info(
            "%s: packed forward passes (logits agree within %.1g standard deviations); KV cache "
            "of %d tokens, %.2f GiB",
            checkpoint.path,
            verdict.distance,
            sizes.tokens,
            sizes.tokens * per_token / 2**30,
        )
        return PackedRunner(
            model,
            verdict.layers,
            vocabulary,
            slots=sizes.slots,
            capacity=sizes.capacity,
            tokens=sizes.tokens,
            adapters=adapters,
        )
    if options.batching == "packed":
        raise checkpoint.unavailable(f"batching: packed does not work for it: {verdict.reason}")
    rows = _rows(model, checkpoint, options, token_ids)
    how = f"padded batches of {rows} choices" if rows > 1 else "one choice at a time"
    logger.info("%s: %s, not packed, because %s", checkpoint.path, how, verdict.reason)
    return NativeRunner(
        Forward(model), vocabulary, slots=rows, tokens=rows * context_length, adapters=adapters
    )


def _paged_runner(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    options: HFOptions,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    *,
    context_length: int,
    adapters: Adapters | None,
) -> SamplingRunner | None:
    """Packed passes over a paged cache, if there is a GPU with a kernel for it; else None."""
    if _not_packed(options):
        return None
    try:
        return paged_runner(
            model,
            checkpoint,
            options,
            vocabulary,
            token_ids,
            find_kernels(model.device, model.dtype),
            CudaCapture(model.device),
            context_length=context_length,
            adapters=adapters,
        )
    except NotPagedError as error:
        level = logging.DEBUG if model.device.type == "cpu" else logging.INFO
        logger.log(level, "%s: paged KV cache disabled because %s", checkpoint.path, error)
        return None


def _not_packed(options: HFOptions) -> str:
    """The option that rules out packed passes, if any."""
    if options.batching not in ("auto", "packed"):
        return f"the options set batching: {options.batching}"
    if options.attn_implementation:
        return f"the options set attn_implementation: {options.attn_implementation}"
    return ""


def _probe_packed(
    model: PreTrainedModel, options: HFOptions, token_ids: Sequence[int]
) -> packed.Verdict:
    if reason := _not_packed(options):
        return packed.Verdict(reason=reason)
    return packed.probe(model, token_ids[: packed.TOKENS])


def _rows(
    model: PreTrainedModel, checkpoint: Checkpoint, options: HFOptions, token_ids: Sequence[int]
) -> int:
    forward = Forward(model)
    try:
        ability = native.probe(forward, token_ids[: native.TOKENS])
    except Exception as error:
        raise checkpoint.unavailable(
            f"the model fails to run: {type(error).__name__}: {error}"
        ) from error
    if ability == native.Ability.NONE:
        raise checkpoint.unavailable(
            f"{checkpoint.architecture} in {forward.dtype} does not continue a text from its "
            "cache as it should: it is not a causal language model, or needs another dtype"
        )
    single = options.batching == "single" or options.max_batch_size == 1
    if ability == native.Ability.ONE_ROW and not single:
        logger.warning(
            "%s: rows of different lengths affect each other in this architecture, so "
            "it answers one request at a time",
            checkpoint.path,
        )
    return 1 if single or ability == native.Ability.ONE_ROW else options.max_batch_size
