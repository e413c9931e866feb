"""Checks after loading that the logits of packed forward passes match the model's.

A few things are known to be wrong from the configuration. Beyond that, names do not reveal it:
some classes have attention code of their own, some drop arguments. Logits do.
"""

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from enginebay import Chunk
from enginebay_hf.packed.attention import attending_layers
from enginebay_hf.packed.decoder import Decoder, is_known
from enginebay_hf.packed.int8 import rounding
from enginebay_hf.packed.memory import LayerShape
from enginebay_hf.packed.runner import PackedRunner
from enginebay_hf.packed.switching import implementations, switch
from enginebay_hf.sampling_runner import SamplingRunner, Vocabulary

logger = logging.getLogger(__name__)

# Distances in standard deviations of the logits, over 67 families of tiny random models in
# float32: right ones stay below 1e-4, wrong ones are above 1. Half formats round, up to 0.5 where
# that makes a router choose another expert.
_TOLERANCE = {torch.float32: 2e-3}
_TOLERANCE_OF_HALF = 0.5

_FIRST, _SECOND, _APART = 44, 35, 7
TOKENS = _FIRST + _APART
"""How many tokens `probe` needs."""

RunnerOf = Callable[[PreTrainedModel, Mapping[int, LayerShape], Decoder | None], SamplingRunner]
"""Makes a runner to probe: of four slots, each for `TOKENS` tokens and those before them."""

_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a probe.

    `layers` is what the packed runner needs to know of the model, None if it cannot be packed;
    `reason` then says why. `decoder` runs them, if not only the model's own code can. `distance` is
    the worst seen between logits that should be equal, in standard deviations; None if it was not
    measured.
    """

    layers: dict[int, LayerShape] | None = None
    decoder: Decoder | None = None
    distance: float | None = None
    reason: str = ""

    @property
    def exact(self) -> bool:
        """Whether the model may be packed."""
        return self.layers is not None


def tolerance(dtype: torch.dtype) -> float:
    """How many standard deviations apart the logits of two correct methods may be."""
    return _TOLERANCE.get(dtype, _TOLERANCE_OF_HALF)


def rows(
    model: PreTrainedModel, layers: Mapping[int, LayerShape], decoder: Decoder | None
) -> SamplingRunner:
    """A runner with a region of memory for each slot."""
    vocabulary = Vocabulary(str, size=0)
    return PackedRunner(model, layers, vocabulary, slots=4, capacity=64, decoder=decoder)


@torch.inference_mode()
def probe(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    runner_of: RunnerOf = rows,
    *,
    before: int = 0,
) -> Verdict:
    """Run `TOKENS` tokens of ordinary text in one plain pass a sequence, and packed.

    In front of them come `before` tokens more, the same text over and over. A model that may be
    packed is left switched to packed attention, any other as it was.
    """
    if reason := _known_to_fail(model):
        return Verdict(reason=reason)
    unpacked = implementations(model.config)
    verdict = Verdict()
    try:
        verdict = _compare(model, token_ids, runner_of, before)
    except Exception as error:
        logger.debug("packed forward passes fail", exc_info=True)
        verdict = Verdict(reason=f"{type(error).__name__}: {error}")
    finally:
        if not verdict.exact:
            model.set_attn_implementation(unpacked)
    return verdict


def _known_to_fail(model: PreTrainedModel) -> str:
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        return "it is an encoder-decoder model"
    if others := set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES:
        return f"it has layers of type {', '.join(sorted(others))}"
    if getattr(model, "_is_stateful", False):
        return "it has recurrent states"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it does not take positions"
    return ""


def _compare(
    model: PreTrainedModel, token_ids: Sequence[int], runner_of: RunnerOf, before: int
) -> Verdict:
    text = list(islice(cycle(token_ids), before + TOKENS))
    texts = text[: before + _FIRST], text[_APART : _APART + before + _SECOND]
    expected = [_plain(model, text) for text in texts]
    switch(model)
    layers = attending_layers(model)
    if not layers:
        return Verdict(reason="it has attention code of its own")
    shapes = {layer: shape for layer, (shape, _) in layers.items()}
    kinds = {layer: kind for layer, (_, kind) in layers.items()}
    if is_known(model):
        try:
            decoder = Decoder(model, kinds)
            worst = _worst(runner_of(model, shapes, decoder), texts, expected, before)
            if worst < tolerance(rounding(model)):
                return Verdict(shapes, decoder, worst)
            reason = f"its logits are {worst:.2g} standard deviations off"
        except Exception as error:
            logger.debug("the layers cannot be run in fewer operations", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
        name = type(model).__name__
        logger.debug("%s: its layers run by transformers' own code, because %s", name, reason)
    worst = _worst(runner_of(model, shapes, None), texts, expected, before)
    if not worst < tolerance(rounding(model)):
        return Verdict(distance=worst, reason=f"its logits are {worst:.2g} standard deviations off")
    return Verdict(shapes, None, worst)


def _worst(
    runner: SamplingRunner, texts: Sequence[Sequence[int]], expected: Sequence[Tensor], before: int
) -> float:
    """The worst distance from the logits expected, in standard deviations."""
    worst = 0.0
    for number, step in enumerate(_steps(before)):
        chunks = [
            Chunk(slot, start, texts[text][start:end], logits=end - start)
            for slot, text, start, end in step
        ]
        actual = runner.run(chunks)
        wanted = torch.cat([expected[text][start:end] for _, text, start, end in step])
        distance = ((actual - wanted).abs().max() / expected[0].std()).item()
        if distance > worst or math.isnan(distance):  # and a NaN stays
            worst = distance
        if number == _COPY_AFTER:
            runner.copy(0, 3, before + 20)
            runner.cut(0, before + 25)
    return worst


def _plain(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    ids = torch.tensor([token_ids], device=model.device)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float()


_Step = list[tuple[int, int, int, int]]
"""What runs in one pass: slot, text, first token, end (exclusive)."""

_COPY_AFTER = 3


def _steps(before: int) -> list[_Step]:
    """Chunks, two sequences in turn, decoding beside chunks, a copied slot, a slot cut short."""
    steps = [
        [(0, 0, 0, 21)],
        [(0, 0, 21, 32), (1, 1, 0, 17)],
        [(1, 1, 17, 31), (0, 0, 32, 33)],
        [(0, 0, 33, 34), (1, 1, 31, 32)],
        [(3, 0, 20, 24), (1, 1, 32, 33), (0, 0, 25, 26)],
        [(3, 0, 24, 44), (0, 0, 26, 27)],
        [(0, 0, 27, 30), (1, 1, 33, 35), (2, 1, 0, 3)],
    ]
    return [
        [(slot, text, start and start + before, end + before) for slot, text, start, end in step]
        for step in steps
    ]
