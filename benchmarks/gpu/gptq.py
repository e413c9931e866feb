"""A 4-bit copy of a Llama model in GPTQ's format, made on the CPU: food for quantised kernels.

    python -m benchmarks.gpu.gptq SOURCE TARGET DEQUANTIZED --group-size 64

Weights are rounded to the nearest of 16 steps between the least and the greatest of their group; no
calibration, so larger models get worse than by a real quantiser. The format is AutoGPTQ's: eight
numbers to an int32, `qweight` packed along the inputs, `qzeros` along the outputs and less one.
"""

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_BITS, _STEPS, _PER_INT = 4, 15, 8


@dataclass(frozen=True, slots=True)
class Quantized:
    """A Linear layer's weight: `steps` [inputs, outputs] from 0 to 15, and by group of inputs
    `scales` and `zeros` [groups, outputs]: float32 with values of float16, and whole numbers.
    """

    steps: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def weight(self) -> Tensor:
        """What the steps stand for, [outputs, inputs] in float32."""
        groups = self.scales.shape[0]
        steps = self.steps.float().unflatten(0, (groups, -1))
        values = (steps - self.zeros[:, None]) * self.scales[:, None]
        return values.flatten(0, 1).T.contiguous()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has of it."""
        inputs, groups = self.steps.shape[0], self.scales.shape[0]
        return {
            "qweight": _pack(self.steps, 0),
            "qzeros": _pack(self.zeros - 1, 1),
            "scales": self.scales.half(),
            "g_idx": (torch.arange(inputs) // (inputs // groups)).to(torch.int32),
        }


def quantize(weight: Tensor, group_size: int) -> Quantized:
    """Round a weight [outputs, inputs]; ValueError where its sizes do not go into groups."""
    outputs, inputs = weight.shape
    if inputs % group_size or inputs % 32 or outputs % 32:
        raise ValueError(f"a weight of {outputs} x {inputs} has no groups of {group_size}")
    groups = weight.float().T.reshape(inputs // group_size, group_size, outputs)
    least, greatest = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scales = ((greatest - least) / _STEPS).clamp(min=1e-7).half().float()
    zeros = (-least / scales).round().clamp(1, _STEPS + 1)
    steps = (groups / scales[:, None] + zeros[:, None]).round().clamp(0, _STEPS)
    return Quantized(steps.reshape(inputs, outputs).long(), scales, zeros.long())


def _pack(numbers: Tensor, dim: int) -> Tensor:
    """Eight numbers to an int32, the first in the lowest bits."""
    eights = numbers.long().movedim(dim, -1).unflatten(-1, (-1, _PER_INT))
    packed = (eights << (torch.arange(_PER_INT) * _BITS)).sum(-1)
    signed = torch.where(packed < 2**31, packed, packed - 2**32)
    return signed.to(torch.int32).movedim(-1, dim).contiguous()


def convert(source: Path, target: Path, dequantized: Path, group_size: int = 64) -> None:
    """Write the 4-bit copy of `source` to the new folder `target`; and to `dequantized` the same
    model in float32, as transformers loads it: what the copy has to be compared with.
    """
    packed: dict[str, Tensor] = {}
    rounded: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            quantized = quantize(tensor, group_size)
            layer = name.removesuffix("weight")
            packed |= {layer + part: value for part, value in quantized.tensors().items()}
            rounded[name] = quantized.weight
        else:
            packed[name] = tensor.half().contiguous()
            rounded[name] = packed[name].float()
    for folder, weights in ((target, packed), (dequantized, rounded)):
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text("utf-8"))
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": _BITS,
        "group_size": group_size,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq",
    }
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of a Llama model in one safetensors file")
    parser.add_argument("target", type=Path, help="folder to write")
    parser.add_argument("dequantized", type=Path, help="folder for the same weights in float32")
    parser.add_argument("--group-size", type=int, default=64)
    options = parser.parse_args()
    convert(options.source, options.target, options.dequantized, options.group_size)


if __name__ == "__main__":
    main()
