"""How a model can batch requests, found by trying it."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from enginebay import Modality
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.choose_paged import paged_runner
from enginebay_hf.lora import Adapters
from enginebay_hf.media.inputs import MediaInputs
from enginebay_hf.media.model import MediaModel
from enginebay_hf.media.probe import try_media
from enginebay_hf.media.runner import MediaRunner
from enginebay_hf.native import probe as native
from enginebay_hf.native.forward import Forward
from enginebay_hf.native.runner import NativeRunner
from enginebay_hf.options import HFOptions
from enginebay_hf.packed import probe as packed
from enginebay_hf.packed.attention import layer_shapes
from enginebay_hf.packed.graphs import CudaCapture
from enginebay_hf.packed.memory import bytes_per_token
from enginebay_hf.packed.paged_attention import NotPagedError, find_kernels
from enginebay_hf.packed.runner import PackedRunner, WholePromptRunner
from enginebay_hf.packed.switching import implementations, switch
from enginebay_hf.placement import free_memory
from enginebay_hf.sampling_runner import Vocabulary
from enginebay_hf.sizing import memory_sizes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Case:
    """A loaded model, and what its runner is made of."""

    model: PreTrainedModel
    checkpoint: Checkpoint
    options: HFOptions
    vocabulary: Vocabulary
    token_ids: Sequence[int]
    context_length: int
    adapters: Adapters | None
    media: MediaModel | None

    @property
    def inputs(self) -> MediaInputs | None:
        """What passes are given of media, if the model takes any."""
        return self.media.inputs if self.media else None


_Way = Callable[[_Case], MediaRunner | None]


def choose_runner(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    options: HFOptions,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    *,
    context_length: int,
    adapters: Adapters | None,
    media: MediaModel | None = None,
) -> MediaRunner:
    """The best runner whose logits match the model's: packed, padded rows, or one row.

    `token_ids` is ordinary text to try it with; `media` makes items to try. Where only a worse
    runner takes them all, that one is chosen; its `media` is None where none takes any. A
    `BackendUnavailableError` if no logits match, or if the way set in the options does not work.
    """
    model.train(False)
    case = _Case(model, checkpoint, options, vocabulary, token_ids, context_length, adapters, media)
    if media:
        if runner := _with_media(case, media):
            return runner
        case = replace(case, media=None)
    return _paged(case) or _packed(case) or _native(case)


def _with_media(case: _Case, media: MediaModel) -> MediaRunner | None:
    """The best runner of those that take the most kinds of media; it is told which."""
    plain = implementations(case.model.config)
    reasons: dict[Modality, str] = {}
    tried: list[tuple[int, _Way]] = []
    ways: list[_Way] = [_paged, _packed, _native]
    for way in ways if case.options.batching != "packed" else ways[:2]:
        runner = way(case)
        if runner is None:
            continue
        failed = try_media(case.model, runner, media, plain)
        if not failed:
            return runner
        tried.append((len(failed), way))
        for kind, reason in failed.items():
            reasons.setdefault(kind, reason)
        logger.debug(
            "%s: not %s, because %s",
            case.checkpoint.path,
            "in the way above" if way is not _native else "with all media",
            "; ".join(f"of {kind} {reason}" for kind, reason in failed.items()),
        )
        del runner
        case.model.set_attn_implementation(plain)
    fewest, way = min(tried, key=lambda each: each[0], default=(len(media.kinds), _native))
    runner = way(case) if fewest < len(media.kinds) else None
    media.drop(try_media(case.model, runner, media, plain) if runner else reasons, case.checkpoint)
    return runner


def _paged(case: _Case) -> MediaRunner | None:
    """Packed passes over a paged KV cache, if there is a GPU with a kernel for it."""
    if _not_packed(case.options):
        return None
    model = case.model
    try:
        return paged_runner(
            model,
            case.checkpoint,
            case.options,
            case.vocabulary,
            case.token_ids,
            find_kernels(model.device, model.dtype),
            CudaCapture(model.device),
            context_length=case.context_length,
            adapters=case.adapters,
            media=case.inputs,
        )
    except NotPagedError as error:
        level = logging.DEBUG if model.device.type == "cpu" else logging.INFO
        logger.log(level, "%s: paged KV cache disabled because %s", case.checkpoint.path, error)
        return None


def _packed(case: _Case) -> MediaRunner | None:
    """Packed passes over a row of memory for each slot, if the logits agree.

    If those of text do not, perhaps those of prompts with media will, whole ones.
    """
    checkpoint, options = case.checkpoint, case.options
    verdict = _probe_packed(case.model, options, case.token_ids)
    layers, runner = verdict.layers, PackedRunner
    if not layers and verdict.distance is not None and case.media:
        switch(case.model)
        layers, runner = layer_shapes(case.model), WholePromptRunner
    if not layers:
        if options.batching == "packed":
            raise checkpoint.unavailable(f"batching: packed does not work for it: {verdict.reason}")
        logger.debug("%s: not packed, because %s", checkpoint.path, verdict.reason)
        return None
    per_token = bytes_per_token(layers.values())
    device = next(iter(layers.values())).device
    sizes = memory_sizes(
        checkpoint,
        options,
        context_length=case.context_length,
        bytes_per_token=per_token,
        device=str(device),
        free=free_memory(device),
        lazy=sys.platform == "linux" and device.type == "cpu",
    )
    logger.debug(
        "%s: packed forward passes (logits of text are %.1g standard deviations off); KV cache "
        "of %d tokens, %.2f GiB",
        checkpoint.path,
        verdict.distance,
        sizes.tokens,
        sizes.tokens * per_token / 2**30,
    )
    return runner(
        case.model,
        layers,
        case.vocabulary,
        slots=sizes.slots,
        capacity=sizes.capacity,
        tokens=sizes.tokens,
        adapters=case.adapters,
        media=case.inputs,
        decoder=verdict.decoder,
    )


def _native(case: _Case) -> MediaRunner:
    """transformers' own cache, for as many rows as affect each other in no way."""
    rows = _rows(case.model, case.checkpoint, case.options, case.token_ids)
    how = f"padded batches of {rows} choices" if rows > 1 else "one choice at a time"
    logger.debug("%s: %s", case.checkpoint.path, how)
    return NativeRunner(
        Forward(case.model, case.inputs),
        case.vocabulary,
        slots=rows,
        tokens=rows * case.context_length,
        adapters=case.adapters,
    )


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
