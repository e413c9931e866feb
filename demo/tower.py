"""Train the tower of the demo model alone: `python -m demo.tower --out tower.safetensors`.

It learns what lies in each patch of a picture. Then `demo.see` teaches a language model to read it.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import SiglipVisionModel

from demo.patches import Patches, PatchHeads, normalized, patches
from demo.pictures import picture
from demo.seeing import last_layer, make_tower
from demo.train import Optimizer


class _Samples(torch.utils.data.IterableDataset[Patches]):
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __iter__(self) -> Iterator[Patches]:
        rng = random.Random(self._seed)
        while True:
            yield patches(picture(rng))


def train(tower: SiglipVisionModel, args: argparse.Namespace) -> None:
    """`--rows` pictures a step."""
    heads = PatchHeads(tower.config.hidden_size)
    named = [pair for pair in tower.named_parameters() if pair[1].requires_grad]
    named += [(f"embed.{name}", parameter) for name, parameter in heads.named_parameters()]
    optimizer = Optimizer([(1.0, named)], args.rate, args.steps)
    made: Any = torch.utils.data.DataLoader(
        _Samples(args.seed), args.rows, num_workers=1, prefetch_factor=6
    )
    samples, started = iter(made), time.monotonic()
    for step in range(1, args.steps + 1):
        optimizer.zero()
        pixels, kinds, colours = next(samples)
        with torch.autocast("cpu", torch.bfloat16):
            loss, known = heads(last_layer(tower, normalized(pixels)), kinds, colours)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], 1.0)
        optimizer.step()
        if step % 25 == 0:
            seconds = f"{time.monotonic() - started:.0f} s"
            shares = "kinds {:.1%} colours {:.1%}".format(*known.tolist())
            print(f"step {step} loss {loss.item():.3f} {shares} {seconds}", flush=True)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file to write the weights to")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--rows", type=int, default=96, help="pictures per step")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tower = make_tower()
    train(tower.train(), args)
    save_file(tower.state_dict(), args.out)


if __name__ == "__main__":
    main()
