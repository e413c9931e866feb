"""Finds out by logits whether a runner handles a model's media, and what items' tokens see."""

import inspect
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from enginebay import Chunk, GenerationRequest, MediaSpan, Modality, SamplingParams
from enginebay_hf.media.inputs import Sees
from enginebay_hf.media.model import MediaModel
from enginebay_hf.media.runner import MediaRunner
from enginebay_hf.media.sample import sample
from enginebay_hf.packed.int8 import rounding
from enginebay_hf.packed.probe import tolerance
from enginebay_hf.packed.switching import implementations

logger = logging.getLogger(__name__)

_COMPARED = 8  # tokens at the end of a prompt
_CLEARLY = 0.1  # of the tolerance: then no other way is tried
# Half formats round by less than this as a rule, and a wrong way may be little more off: where
# there is a choice the nearest is taken, else there must be no doubt.
_TOLERANCE_OF_ONE_WAY = 0.15
_ORDER: Sequence[Modality] = ("image", "video", "audio")
_NEVER_TOGETHER: Set[Sees] = {"item", "item in windows"}  # one pass has either
_TEXT = "The quick brown fox jumps over the lazy dog. "


def try_media(
    model: PreTrainedModel,
    runner: MediaRunner,
    media: MediaModel,
    plain: Mapping[str, Any],
) -> dict[Modality, str]:
    """Let an empty `runner` see items as the model does; the kinds that fail, and why.

    `plain` is the attention with which the model runs by itself.
    """
    failed: dict[Modality, str] = {}
    chosen: dict[Modality, Sees] = {}
    for kind in sorted(media.kinds, key=_ORDER.index):
        try:
            sees, distance = _best(model, runner, media, kind, plain)
        except Exception as error:
            logger.debug("trying %s fails", kind, exc_info=True)
            failed[kind] = f"{type(error).__name__}: {error}"
            continue
        finally:
            runner.clear()
        bearable = tolerance(rounding(model))
        if len(runner.ways) == 1:
            bearable = min(bearable, _TOLERANCE_OF_ONE_WAY)
        if not distance < bearable:
            failed[kind] = f"the logits are {distance:.2g} standard deviations off"
        elif {*chosen.values(), sees} >= _NEVER_TOGETHER:
            failed[kind] = "its tokens attend otherwise than those of other kinds"
        else:
            chosen[kind] = sees
            logger.debug("%s: tokens see %s (%.1g standard deviations off)", kind, sees, distance)
            if _batches(media, kind, model.dtype):
                media.inputs.batches.add(kind)
    runner.see(chosen)
    return failed


def _best(
    model: PreTrainedModel,
    runner: MediaRunner,
    media: MediaModel,
    kind: Modality,
    plain: Mapping[str, Any],
) -> tuple[Sees, float]:
    item = sample(kind, 1)
    made = media.processor.call(item, f"{_TEXT}{media.processor.placeholders[kind]}{_TEXT}")
    ids = made["input_ids"][0].tolist()
    row_id = media.row_ids[kind]
    spans = tuple(_spans(ids, row_id, item))
    places = [place for span in spans for place in range(span.start, span.end)]
    media.inputs.token_types.update(_types(made, places))
    expected = media.inputs.without_placeholders(_plain(model, made, plain))
    best: tuple[Sees, float] = "past", math.inf
    for sees in runner.ways:
        runner.see({kind: sees})
        distance = _distance(runner, ids, spans, expected)
        runner.clear()
        if distance < best[1]:
            best = sees, distance
        if distance < _CLEARLY * tolerance(rounding(model)):
            break
    return best


def _spans(ids: Sequence[int], row_id: int, item: Any) -> Iterator[MediaSpan]:
    first = start = 0
    for place, token in enumerate([*ids, -1]):
        if token == row_id:
            continue
        if place > start:
            yield MediaSpan(start, place - start, item, first)
            first += place - start
        start = place + 1


def _types(made: Any, places: Sequence[int]) -> dict[str, tuple[int, int]]:
    """What the arguments that tell tokens apart are for text, and for placeholders (`places`)."""
    types: dict[str, tuple[int, int]] = {}
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in made:
            row = made[name][0]
            inside = torch.zeros(len(row), dtype=torch.bool)
            inside[list(places)] = True
            types[name] = int(row[~inside][0]), int(row[inside][0])
    return types


@torch.inference_mode()
def _plain(model: PreTrainedModel, made: Any, plain: Mapping[str, Any]) -> Tensor:
    """The last logits of the model by itself, for what its processor made."""
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    parameters = inspect.signature(model.forward).parameters
    arguments: dict[str, Any] = {
        name: value.to(device, model.dtype if value.is_floating_point() else None)
        for name, value in made.items()
        if isinstance(value, Tensor) and name != "labels"
    }
    if "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = _COMPARED
    packed = implementations(model.config)
    model.set_attn_implementation(dict(plain))
    try:
        logits: Tensor = model(use_cache=False, **arguments).logits[0, -_COMPARED:]
    finally:
        model.set_attn_implementation(packed)
        if hasattr(model.base_model, "rope_deltas"):  # it would keep those of this prompt
            setattr(model.base_model, "rope_deltas", None)  # noqa: B010  (unknown to mypy)
    return logits.float()


def _distance(
    runner: MediaRunner, ids: Sequence[int], spans: Sequence[MediaSpan], expected: Tensor
) -> float:
    """How many standard deviations a runner's last logits are off.

    The last token is run by itself, as one that was sampled, unless it must see what it is in.
    """
    together = runner.memory.media_spans == "prompt"
    prompt = len(ids) if together else len(ids) - 1
    request = GenerationRequest(
        request_id="trial",
        prompt_token_ids=tuple(ids[:prompt]),
        sampling=SamplingParams(),
        media=tuple(spans),
    )
    borders = [0, prompt, len(ids)]
    if runner.memory.chunks and not together:
        span = spans[0]
        whole = runner.memory.media_spans == "whole"
        borders.insert(1, span.start if whole else span.start + span.tokens // 2)
    rows = []
    for start, end in pairwise(borders):
        if start == end:
            continue
        wanted = min(end - start, _COMPARED - 1) if end == prompt and runner.memory.chunks else 1
        logits = runner.run([Chunk(0, start, ids[start:end], wanted, request=request)])
        if end >= prompt:
            rows.append(logits)
    actual = torch.cat(rows)
    wanted_logits = expected[-len(actual) :]
    finite = wanted_logits.isfinite()
    worst = (actual[finite] - wanted_logits[finite]).abs().max() / wanted_logits[finite].std()
    return worst.nan_to_num(math.inf).item()


def _batches(media: MediaModel, kind: Modality, dtype: torch.dtype) -> bool:
    """Whether items are encoded together as they are alone."""
    try:
        alone, together = media.inputs.alone_and_together([sample(kind, 2), sample(kind, 3)])
    except Exception:
        logger.debug("%s cannot be encoded together", kind, exc_info=True)
        return False
    for one, other in zip(alone, together, strict=True):
        worst = (one.hidden - other.hidden).abs().max() / one.hidden.float().std()
        if not worst < tolerance(dtype) / 5:
            return False
    return True
