"""Checks after loading that the paged runner's logits match the model's."""

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import torch
from transformers import PreTrainedModel

from enginebay import Chunk
from enginebay_hf.packed import probe
from enginebay_hf.packed.decoder import Decoder
from enginebay_hf.packed.graphs import Capture
from enginebay_hf.packed.memory import LayerShape
from enginebay_hf.packed.paged_attention import Kernel
from enginebay_hf.packed.paged_runner import PagedRunner
from enginebay_hf.packed.pages import PAGE_SIZE
from enginebay_hf.sampling_runner import Vocabulary

logger = logging.getLogger(__name__)

_SLOTS = 4
_CAPACITY = 64
# So far before the end of a page the probe's own tokens begin: chunks cross it, a copy ends just
# before it and a slot is cut just after it.
_BEFORE_END = 23


def probe_paged(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    kernel: Kernel,
    *,
    context_length: int,
    page_size: int = PAGE_SIZE,
) -> probe.Verdict:
    """As `probe`, with a paged KV cache."""
    before = max(0, min(page_size - _BEFORE_END, context_length - _CAPACITY))
    pages = 1 + _SLOTS * -(-(before + _CAPACITY) // page_size)

    def runner(
        model: PreTrainedModel, layers: Mapping[int, LayerShape], decoder: Decoder | None
    ) -> PagedRunner:
        return PagedRunner(
            model,
            layers,
            Vocabulary(str, size=0),
            kernel,
            slots=_SLOTS,
            capacity=before + _CAPACITY,
            pages=pages,
            page_size=page_size,
            decoder=decoder,
        )

    return probe.probe(model, token_ids, runner, before=before)


def capture_decoding(
    runner: PagedRunner,
    capture: Capture,
    token_ids: Sequence[int],
    *,
    rows: int,
    dtype: torch.dtype,
) -> str:
    """Let the empty `runner` decode by captured passes; if that fails, why it does not.

    Each captured pass is compared with a plain one, for two tokens of `rows` sequences or fewer.
    """
    try:
        worst = _compare(runner, capture, token_ids, rows)
    except Exception as error:
        logger.debug("capturing fails", exc_info=True)
        reason = f"{type(error).__name__}: {error}"
    else:
        if worst < probe.tolerance(dtype):
            return ""
        reason = f"logits are {worst:.2g} standard deviations off"
    finally:
        runner.clear()
    runner.drop_captured()
    return reason


def _compare(runner: PagedRunner, capture: Capture, token_ids: Sequence[int], rows: int) -> float:
    """The worst distance between plain and captured passes, in standard deviations."""
    slots = min(rows, runner.memory.slots)
    prompts = [[*islice(cycle(token_ids), slot, slot + 5 + slot % 7)] for slot in range(slots)]
    following = list(islice(cycle(token_ids), slots + 1))
    runner.run([Chunk(slot, 0, prompt) for slot, prompt in enumerate(prompts)])
    steps = [
        [
            Chunk(slot, len(prompt) + step, [following[slot + step]], logits=1)
            for slot, prompt in enumerate(prompts)
        ]
        for step in range(2)
    ]
    plain = [runner.run(step) for step in steps]
    worst = 0.0
    for size in runner.capture(capture, rows=rows):
        for slot, prompt in enumerate(prompts):
            runner.cut(slot, len(prompt))
        count = max(1, min(3 * size // 4, slots))
        for step, expected in zip(steps, plain, strict=True):
            likely = expected[:count] != -math.inf  # what is never sampled is apart by no number
            apart = (runner.run(step[:count]) - expected[:count])[likely].abs().max()
            apart = apart / expected[expected != -math.inf].std()
            worst = max(worst, apart.nan_to_num(math.inf).item())
    return worst
