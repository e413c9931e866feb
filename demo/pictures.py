"""Pictures of coloured shapes and digits, drawn at random, and what is in them."""

import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 96
"""Width and height in pixels that the tower sees; positions and sizes of things are in these."""
PADDING = (122, 116, 104)
"""What LLaVA's processor and llama.cpp fill up pictures with that are not square."""

_COLOURS = {
    "red": ((215, 35, 35), (255, 0, 0)),
    "green": ((40, 160, 60), (0, 128, 0), (0, 255, 0)),
    "blue": ((40, 80, 215), (0, 0, 255)),
    "yellow": ((245, 215, 40), (255, 255, 0)),
    "orange": ((245, 135, 25), (255, 165, 0)),
    "purple": ((140, 50, 170), (128, 0, 128)),
    "black": ((20, 20, 20), (0, 0, 0)),
    "white": ((245, 245, 245), (255, 255, 255)),
}
"""Soft ones first, then those that the names stand for on the web, more or less."""
NAMES = tuple(_COLOURS)
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
NUMBERS = "0123456789"
_BACKGROUNDS = (
    (255, 255, 255),
    (250, 250, 250),
    (235, 235, 240),
    (200, 200, 200),
    (128, 128, 128),
    (30, 30, 30),
    (0, 0, 0),
    (210, 230, 250),
    (250, 240, 220),
    (220, 245, 220),
    (60, 60, 80),
)
_GRIDS = {
    2: (((0, 0), (1, 0)), ((0, 0), (0, 1)), ((0, 0), (1, 1)), ((1, 0), (0, 1))),
    3: (
        ((0, 0), (1, 0), (0, 1)),
        ((0, 0), (1, 0), (1, 1)),
        ((0, 0), (0, 1), (1, 1)),
        ((1, 0), (0, 1), (1, 1)),
    ),
}
"""Columns and rows of the quarters that things stand in, in reading order."""

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape or a digit around (x, y), and half its height."""

    kind: str
    colour: str
    x: float
    y: float
    size: float

    @property
    def noun(self) -> str:
        """What it is called where its own name is not given away."""
        return "number" if self.kind in NUMBERS else self.kind


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of any size, what is in it in reading order, and where that is."""

    image: Image.Image
    things: tuple[Thing, ...]
    masks: tuple[Image.Image, ...]
    """For each thing a grey picture of the same size, white where it is."""


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _regular(corners: int, radius: float, start: float, inner: float = 1) -> Points:
    """A regular polygon, or with a smaller `inner` radius of every other corner a star."""
    radii = (radius * (inner if i % 2 else 1) for i in range(corners))
    angles = (start + 2 * math.pi * i / corners for i in range(corners))
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


def _cross() -> Points:
    arm = 0.32
    corner = [(-arm, -1.0), (arm, -1.0), (arm, -arm)]
    points: Points = []
    for _ in range(4):
        points += corner
        corner = [(-y, x) for x, y in corner]
    return points


def _heart() -> Points:
    points: Points = []
    for i in range(40):
        t = 2 * math.pi * i / 40
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((16 * math.sin(t) ** 3 / 17, -y / 17))
    return points


_OUTLINES: dict[str, Callable[[], Points]] = {
    "circle": lambda: _regular(72, 1, 0),
    "square": lambda: _regular(4, 1.15, math.pi / 4),
    "triangle": lambda: _regular(3, 1.1, -math.pi / 2),
    "star": lambda: _regular(10, 1.1, -math.pi / 2, 0.42),
    "cross": _cross,
    "heart": _heart,
}


def _mask(rng: random.Random, thing: Thing, size: tuple[int, int], scale: float) -> Image.Image:
    """Where the thing is, upright or turned a little."""
    mask = Image.new("L", size, 0)
    pen = ImageDraw.Draw(mask)
    x, y, radius = size[0] / 2 + thing.x * scale, size[1] / 2 + thing.y * scale, thing.size * scale
    if thing.kind in NUMBERS:
        bold = int(radius * rng.choice((0, 0.06, 0.1)))
        font = _font(int(radius * 2.4))
        pen.text((x, y), thing.kind, fill=255, font=font, anchor="mm", stroke_width=bold)
        return mask
    turn = rng.uniform(-0.25, 0.25) if rng.random() < 0.5 else 0.0
    c, s = radius * math.cos(turn), radius * math.sin(turn)
    outline = _OUTLINES[thing.kind]()
    pen.polygon([(x + px * c - py * s, y + px * s + py * c) for px, py in outline], fill=255)
    return mask


def _shade(rng: random.Random, name: str) -> Colour:
    """A colour that goes by the name."""
    soft, *pure = _COLOURS[name]
    if rng.random() < 0.3:
        return rng.choice(pure)
    red, green, blue = (min(255, max(0, v + rng.randint(-22, 22))) for v in soft)
    return red, green, blue


def _background(rng: random.Random, shades: list[Colour]) -> Colour:
    """A colour that all these stand out from."""
    while True:
        chosen: Colour = rng.choice(_BACKGROUNDS)
        if rng.random() < 0.15:
            chosen = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        apart = (sum(abs(a - b) for a, b in zip(chosen, each, strict=True)) for each in shades)
        if all(distance > 130 for distance in apart):
            return chosen


def _wear(rng: random.Random, image: Image.Image) -> Image.Image:
    """What happens to pictures on their way: noise, blur from scaling up, JPEG."""
    if strength := rng.choice((0, 0, 0, 3, 8)):
        noise = np.random.default_rng(rng.getrandbits(32)).normal(0, strength, (*image.size, 3))
        pixels = np.asarray(image, np.float32) + noise.swapaxes(0, 1)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.25:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=rng.randint(40, 92))
        image = Image.open(file).convert("RGB")
    return image


def draw(rng: random.Random, things: tuple[Thing, ...]) -> Picture:
    """Draw things whose positions count from the middle, on a plain background."""
    side = rng.choice((64, 96, 96, 128, 192, 192, 256, 320))
    longer = int(side * rng.choice((1, 1, 1, rng.uniform(1, 1.4))))
    size = (side, longer) if rng.random() < 0.5 else (longer, side)
    shades = [_shade(rng, thing.colour) for thing in things]
    image = Image.new("RGB", size, _background(rng, shades))
    masks = tuple(_mask(rng, thing, size, side / SIZE) for thing in things)
    for shade, mask in zip(shades, masks, strict=True):
        image.paste(shade, (0, 0), mask)
    return Picture(_wear(rng, image), things, masks)


def _one(rng: random.Random) -> tuple[Thing, ...]:
    kind = rng.choice(SHAPES if rng.random() < 0.6 else NUMBERS)
    size = rng.uniform(22 if kind in NUMBERS else 18, 42)
    free = SIZE / 2 - size - 2
    x, y = rng.uniform(-free, free), rng.uniform(-free, free)
    return (Thing(kind, rng.choice(NAMES), x, y, size),)


def _several(rng: random.Random, amount: int) -> tuple[Thing, ...]:
    """Shapes in two columns and two rows; a quarter of the time all alike, to count."""
    places = rng.choice(_GRIDS[amount])
    columns, rows = ({place[axis] for place in places} for axis in (0, 1))
    right = rng.uniform(0, 48) if columns == {0} else 0.0  # one column stands anywhere
    down = rng.uniform(0, 48) if rows == {0} else 0.0
    alike = rng.random() < 0.25
    things: list[Thing] = []
    for column, row in places:
        kind, colour = rng.choice(SHAPES), rng.choice(NAMES)
        if alike and things:
            kind, colour = things[0].kind, things[0].colour
        x = 48 * column - 24 + right + rng.uniform(-2, 2)
        y = 48 * row - 24 + down + rng.uniform(-2, 2)
        things.append(Thing(kind, colour, x, y, rng.uniform(16, 22)))
    return tuple(things)


def picture(rng: random.Random) -> Picture:
    """A digit or up to three shapes; now and then nothing."""
    amount = rng.choices((0, 1, 2, 3), weights=(4, 54, 29, 13))[0]
    if not amount:
        return draw(rng, ())
    return draw(rng, _one(rng) if amount == 1 else _several(rng, amount))
