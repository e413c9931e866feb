"""What the tower sees of a picture, patch by patch, and how well it knows what lies there."""

from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from demo.pictures import NAMES, NUMBERS, PADDING, SHAPES, SIZE, Picture

PATCH = 16
"""Width and height of a patch in pixels."""
SIDE = SIZE // PATCH
ROWS = SIDE * SIDE
"""Patches of a picture, and so the tokens it takes."""
_KINDS = (*SHAPES, *NUMBERS)
_VISIBLE = 0.08
"""The share of a patch that a thing must cover to be looked for there."""

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Patches(NamedTuple):
    """3 x 96 x 96 bytes, and for each patch the number of a kind and a colour; 0 is none."""

    pixels: Bytes
    kinds: Numbers
    colours: Numbers


def square(image: Image.Image) -> Image.Image:
    """Padded to a square and resized to `SIZE`, as LLaVA's processor does it."""
    side = max(image.size)
    if image.width != image.height:
        padded = Image.new(image.mode, (side, side), PADDING if image.mode == "RGB" else 0)
        padded.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        image = padded
    return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def patches(picture: Picture) -> Patches:
    """The picture as the tower sees it, and in each patch what covers most of it."""
    kinds, colours = (np.zeros((SIDE, SIDE), np.int64) for _ in range(2))
    most = np.full((SIDE, SIDE), _VISIBLE)
    for thing, mask in zip(picture.things, picture.masks, strict=True):
        small = square(mask).resize((SIDE, SIDE), Image.Resampling.BOX)
        cover = np.asarray(small, np.float64) / 255
        kinds[cover > most] = 1 + _KINDS.index(thing.kind)
        colours[cover > most] = 1 + NAMES.index(thing.colour)
        most = np.maximum(most, cover)
    pixels = np.asarray(square(picture.image), np.uint8).transpose(2, 0, 1).copy()
    return Patches(pixels, kinds.ravel(), colours.ravel())


def normalized(pixels: torch.Tensor) -> torch.Tensor:
    """Bytes as LLaVA's processor hands them to the tower."""
    mean, deviation = (
        torch.tensor(values)[:, None, None] for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD)
    )
    return (pixels.float() / 255 - mean) / deviation


class PatchHeads(nn.Module):
    """Two linear readings of the tower's rows, which only training needs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kind = nn.Linear(width, 1 + len(_KINDS))
        self.colour = nn.Linear(width, 1 + len(NAMES))

    def forward(
        self, rows: torch.Tensor, kinds: torch.Tensor, colours: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean cross entropy, empty patches at a third; and the shares of others known."""
        filled = kinds > 0
        weights = torch.where(filled, 1.0, 0.3)
        losses, known = [], []
        for head, wanted in ((self.kind, kinds), (self.colour, colours)):
            found = head(rows).float()
            each = functional.cross_entropy(found.transpose(1, 2), wanted, reduction="none")
            losses.append((each * weights).mean())
            known.append((found.argmax(-1) == wanted)[filled].float().mean())
        return losses[0] + 0.6 * losses[1], torch.stack(known)
