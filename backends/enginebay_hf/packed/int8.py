"""Linear layers in 8 bits, on the CPU: each output's weights and each token's inputs by a scale.

A step reads half of the bytes of bfloat16, and processors with VNNI multiply them twice as fast.
With 1 / 4 / 16 / 64 rows a product took 0.37 / 0.29 / 0.38 / 0.47 of the time of a prepacked one in
bfloat16, on one core with AVX-512, without what turns inputs into 8 bits. The sums are of whole
numbers, and a token's scale is its own: no row depends on another, to the last bit.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from enginebay_hf.packed.fused import plain_layers
from enginebay_hf.packed.narrow import NarrowLinear, many_rows

logger = logging.getLogger(__name__)

_ZERO = 128  # inputs are unsigned to oneDNN
_LARGEST = 127
_SMALLEST_SCALE = 1e-20
_FEW_ROWS = 8


class Int8Linear(nn.Module):
    """Stands for an `nn.Linear` in inference.

    `weight` still has the shape, dtype and device of the layer's, but no numbers.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self.weight = _missing(linear)
        codes, self._scales = _codes(linear)
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self._packed: Tensor = torch.ops.onednn.qlinear_prepack(codes, None)

    def forward(self, hidden: Tensor) -> Tensor:
        """As `nn.Linear`."""
        rows = hidden.reshape(-1, self.in_features).float()
        if not len(rows):
            return hidden.new_empty(*hidden.shape[:-1], self.out_features)
        scales = rows.abs().amax(-1, keepdim=True).div_(_LARGEST).clamp_(min=_SMALLEST_SCALE)
        codes = rows.div(scales).round_().add_(_ZERO).to(torch.uint8)
        output: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes,
            1.0,
            _ZERO,
            self._packed,
            self._scales,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        output = output.mul_(scales)
        if self.bias is not None:
            output = output.add_(self.bias)
        return output.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)


class Int8WeightLinear(nn.Module):
    """Stands for an `nn.Linear` in inference, with weights in 8 bits and inputs as they are.

    Few rows are rounded to bfloat16. `weight` has the layer's shape, dtype and device, but no
    numbers.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self.weight = _missing(linear)
        self._codes, self._scales = _codes(linear)
        self._ones = torch.ones(self.out_features, dtype=torch.bfloat16)

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply as `nn.Linear` does."""
        rows = hidden.reshape(-1, self.in_features)
        if len(rows) <= _FEW_ROWS:
            sums = torch._weight_int8pack_mm(rows.bfloat16(), self._codes, self._ones)
        else:
            sums = many_rows(rows, self._codes)
        output = sums * self._scales
        if self.bias is not None:
            output = output.add_(self.bias)
        return output.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)


def _codes(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return the weight in 8 bits, and a scale for each output in float32."""
    numbers = linear.weight.detach().float()
    scales = numbers.abs().amax(1).div_(_LARGEST).clamp_(min=_SMALLEST_SCALE)
    return numbers.div(scales[:, None]).round_().to(torch.int8), scales


def _missing(linear: nn.Linear) -> Tensor:
    return torch.full((), torch.nan, dtype=linear.weight.dtype).expand(linear.weight.shape)


@torch.inference_mode()
def quantize(model: PreTrainedModel) -> int:
    """Replace the plain linear layers of the language model but its output; how many it were.

    Their plain weights are freed. A `ValueError` says why it cannot be done.
    """
    fault = product_fault()
    if fault:
        logger.debug("only weights are in 8 bits: %s", fault)
    base: Any = getattr(model.base_model, "language_model", None) or model.base_model
    replaced = 0
    for parent, name, layer in plain_layers(base):
        setattr(parent, name, (Int8WeightLinear if fault else Int8Linear)(layer))
        replaced += 1
    if not replaced:
        raise ValueError("it has no plain linear layers on the CPU")
    return replaced


def rounding(model: PreTrainedModel) -> torch.dtype:
    """The number format as which the model rounds: like bfloat16, if any layer has fewer bits.

    A difference in the last bit of a float32 is enough for another code of 8 bits.
    """
    coarse = (Int8Linear, Int8WeightLinear, NarrowLinear)
    return torch.bfloat16 if any(isinstance(m, coarse) for m in model.modules()) else model.dtype


def product_fault() -> str:
    """Return why torch's product of 8 bits is of no use on this processor; empty if it is right.

    Processors without VNNI add two products in 16 bits, which overflows for large numbers.
    """
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(96, 80)
    largest = nn.Linear(96, 80)
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    for parameter in largest.parameters():
        parameter.data = torch.ones(parameter.shape)
    try:
        for layer, inputs in (
            *((linear, torch.randn(rows, 96, generator=generator)) for rows in (1, 5, 40)),
            (largest, torch.ones(2, 96)),
        ):
            expected = layer(inputs)
            error = (Int8Linear(layer)(inputs) - expected).abs().max()
            if not error < 0.01 * expected.abs().max():
                return (
                    "torch multiplies 8-bit numbers wrong on this processor. On x86, the processor "
                    "needs AVX512-VNNI, AVX-VNNI or AMX"
                )
    except Exception as error:
        logger.debug("no products of 8 bits", exc_info=True)
        return f"this torch has no product of 8 bits for this processor ({error})"
    return ""
