"""The kinds of vision towers that exllamav2 has: sizes of pictures, and the tokens around them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from enginebay import InvalidRequestError, size_within
from enginebay_exllamav2.library import vision

Size = tuple[int, int]
"""Width and height in pixels."""

_MOST_PIXELS = 2**21
"""Of any picture: the towers' attention may need memory by the square of it."""
_LONGEST_SHAPE = 200  # sides of a picture at most this many to one: transformers' limit for Qwen


@dataclass(frozen=True, kw_only=True)
class Family:
    """What one kind of tower makes of a picture.

    `placeholder` is what chat templates write for a picture, `row` the text of the token that
    stands for a row of embeddings. `before` and `behind` are the texts around these in a prompt, by
    transformers' processors; `own` of their tokens, those next to the rows, are in the library's
    embedding, too. Towers that end each line of a picture have a token for that, `line_end`, and
    another one behind the last line, `last_end`.

    `fitted(config, size, max_pixels)` is the size to which a picture is brought before the
    library gets it, which then leaves it as it is. `max_pixels`: whether that matters.
    `activation` is the only one that the library has for it, if configurations name one.
    """

    placeholder: str
    row: str
    before: str = ""
    behind: str = ""
    own: int = 0
    line_end: str = ""
    last_end: str = ""
    max_pixels: bool = True
    activation: str = ""
    fitted: Callable[[Any, Size, int], Size]

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that must each be one token of the tokenizer."""
        inner = (self.before.strip(), self.row, self.behind.strip(), self.line_end, self.last_end)
        return tuple(text for text in inner if text)

    def grid(self, config: Any, size: Size) -> Size:
        """Columns and lines of rows of a picture of a fitted size."""
        if self is GEMMA:
            side = math.isqrt(config.vision_mm_tokens_per_image)
            return side, side
        merged = config.vision_spatial_merge_size
        width, height = size
        columns = width // config.vision_patch_size["width"] // merged
        return columns, height // config.vision_patch_size["height"] // merged

    def text(self, columns: int, lines: int) -> str:
        """What stands for a picture in a prompt."""
        rows = self.line_end.join([self.row * columns] * lines)
        return f"{self.before}{rows}{self.last_end}{self.behind}"

    def length(self, columns: int, lines: int) -> int:
        """Tokens of the embedding: rows, the ends of lines, and `own` on either side."""
        return columns * lines + (lines if self.line_end else 0) + 2 * self.own


def family_of(config: Any) -> Family | None:
    """The family of an `ExLlamaV2Config`; None for a model without a tower that it supports."""
    match config.vision_model_type:
        case "pixtral":
            return PIXTRAL
        case "qwen2" | "qwen2.5":
            return QWEN
        case "siglip_vision_model" if config.architecture == "Gemma3ForConditionalGeneration":
            return GEMMA
    return None


def most_patches(config: Any) -> int:
    """Patches of the largest picture that a tower is given."""
    patch = config.vision_patch_size["width"] * config.vision_patch_size["height"]
    if family_of(config) is GEMMA:
        return int(config.vision_size["width"] * config.vision_size["height"] // patch)
    return int(_MOST_PIXELS // patch)


def _pixtral(config: Any, size: Size, max_pixels: int) -> Size:
    # The library has lines of whole pairs of patches (vlm/processor/pixtral.py, `preprocess`).
    step = tuple(2 * config.vision_patch_size[side] for side in ("width", "height"))
    edge = config.vision_size["longest_edge"]
    within = vision.util.size_to_longest_edge_and_patch_size
    fitted: Size = within(size_within(size, min(max_pixels, _MOST_PIXELS)), (edge, edge), step)
    return fitted


def _qwen(config: Any, size: Size, max_pixels: int) -> Size:
    if max(size) > _LONGEST_SHAPE * min(size):
        raise InvalidRequestError(
            f"the picture is {size[0]} x {size[1]} pixels; for this model one side may be at most "
            f"{_LONGEST_SHAPE} times the other"
        )
    step = config.vision_spatial_patch_size * config.vision_spatial_merge_size
    least = config.vision_min_pixels
    most = max(least, min(config.vision_max_pixels, max_pixels, _MOST_PIXELS))
    larger = max(1.0, step / min(size))  # the library refuses smaller ones
    width, height = (math.ceil(side * larger) for side in size)
    fitted: Size = vision.util.smart_resize((width, height), step, least, most)
    if min(fitted) < step or fitted != vision.util.smart_resize(
        fitted, step, least, config.vision_max_pixels
    ):
        raise InvalidRequestError(
            f"the picture is {size[0]} x {size[1]} pixels: too narrow to be scaled to {most} pixels"
        )
    return fitted


def _gemma(config: Any, size: Size, max_pixels: int) -> Size:
    return config.vision_size["width"], config.vision_size["height"]


PIXTRAL = Family(
    placeholder="[IMG]",
    row="[IMG]",
    line_end="[IMG_BREAK]",
    last_end="[IMG_END]",
    activation="silu",
    fitted=_pixtral,
)
QWEN = Family(
    placeholder="<|vision_start|><|image_pad|><|vision_end|>",
    row="<|image_pad|>",
    before="<|vision_start|>",
    behind="<|vision_end|>",
    own=1,
    fitted=_qwen,
)
GEMMA = Family(
    placeholder="<start_of_image>",
    row="<image_soft_token>",
    before="\n\n<start_of_image>",
    behind="<end_of_image>\n\n",
    own=1,
    max_pixels=False,
    activation="gelu_pytorch_tanh",
    fitted=_gemma,
)
