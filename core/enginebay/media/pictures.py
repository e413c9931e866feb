"""Bytes of a picture to pixels, within limits that hold before they are decoded."""

import io
import math
import warnings
from typing import TYPE_CHECKING

from enginebay.contract.errors import InvalidRequestError, UnsupportedModalityError
from enginebay.contract.media import Media, MediaLimits
from enginebay.media.kinds import format_of

if TYPE_CHECKING:
    from PIL import Image

_SCANS = 100  # of a JPEG; each passes over all of its pixels, and progressive ones have about ten


def decode_picture(media: Media) -> "Image.Image":
    """The picture in RGB, 8 bits a channel.

    It is turned as its EXIF says, what is transparent is white, of an animation it is the first
    frame. `InvalidRequestError`, without `param`, for what is no picture or beyond its limits.
    """
    image = _open(media.data, media.limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about EXIF and the like
            image.load()
            return _rgb(_turned(image))
    except Exception as error:  # of what its bytes do to one of five decoders
        raise InvalidRequestError("the picture cannot be decoded: it is damaged or cut") from error
    finally:
        image.close()


def size_within(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """A width and height of about the same shape, not larger, with at most so many pixels in all.

    Each is at least 1, so a line may have more.
    """
    scale = min(1.0, math.sqrt(pixels / (size[0] * size[1])))
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))


def picture_within(image: "Image.Image", pixels: int) -> "Image.Image":
    """The same picture, smaller if it has more pixels than that: see `size_within`."""
    size = size_within(image.size, pixels)
    return image if size == image.size else image.resize(size)


def check_picture(data: bytes, limits: MediaLimits) -> None:
    """`InvalidRequestError` if its header says what `decode_picture` refuses; decodes nothing."""
    _open(data, limits).close()


def require_pillow() -> None:
    """Raise `UnsupportedModalityError` if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise UnsupportedModalityError(
            'to read an image this server needs Pillow: pip install "enginebay[media]"'
        ) from error


def _open(data: bytes, limits: MediaLimits) -> "Image.Image":
    require_pillow()
    from PIL import Image

    reader = format_of(data, "image").readers["image"]
    if reader == "JPEG" and data.count(b"\xff\xda") > _SCANS:
        raise InvalidRequestError(f"the picture has more than {_SCANS} scans, the most of a JPEG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # among them Pillow's own limit, a warning
            image = Image.open(io.BytesIO(data), formats=(reader,))
    except Image.DecompressionBombError as error:
        raise InvalidRequestError(
            f"the picture has too many pixels: the most are {limits.pixels}"
        ) from error
    except Exception as error:
        raise InvalidRequestError("the picture cannot be read: its header is damaged") from error
    width, height = image.size
    if width < 1 or height < 1:
        raise InvalidRequestError(f"the picture has no pixels: it is {width} x {height}")
    if max(width, height) > limits.side or width * height > limits.pixels:
        raise InvalidRequestError(
            f"the picture is too large: {width} x {height} pixels; the most are {limits.pixels} "
            f"in all and {limits.side} a side"
        )
    if any(tile.codec_name == "bmp_rle" for tile in image.tile):  # slow: Pillow's is Python
        raise InvalidRequestError("the picture is a compressed BMP, which is not read; send a PNG")
    return image


def _turned(image: "Image.Image") -> "Image.Image":
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # EXIF that is damaged says nothing
        return image


def _rgb(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        eight_bits = [value // 256 for value in range(65536)]
        return image.convert("I").point(eight_bits, "L").convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert("RGB")
