"""Pictures to pixels: MEDIA-1, MEDIA-15, MEDIA-16, MM-3, MM-6."""

import io
import os
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from enginebay.contract.errors import InvalidRequestError, UnsupportedModalityError
from enginebay.contract.media import MediaLimits
from enginebay.media.pictures import check_picture, decode_picture
from tests.media.samples import (
    BOMBS,
    PNG,
    bmp_that_says,
    encoded,
    jpeg_that_says,
    media,
    picture,
    png_that_says,
)
from tests.support import REPOSITORY

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def test_without_pillow_images_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedModalityError, match=r'pip install "enginebay\[media\]"'):
        check_picture(PNG, MediaLimits())


def pixel(data: bytes, place: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    decoded = decode_picture(media("image", data))
    assert decoded.mode == "RGB"
    found = decoded.getpixel(place)
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_formats(format: str) -> None:
    data = picture(format, (8, 6))
    check_picture(data, MediaLimits())
    assert decode_picture(media("image", data)).size == (8, 6)
    assert np.allclose(pixel(data, (4, 3)), (255, 0, 0), atol=3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "I;16"])
def test_modes(mode: str) -> None:
    grey = Image.new("L", (2, 2), 255).convert(mode if mode != "I;16" else "L")
    if mode == "I;16":
        grey = Image.fromarray(np.full((2, 2), 65535, np.uint16))
    assert pixel(encoded(grey, "JPEG" if mode == "CMYK" else "PNG")) == (255, 255, 255)


def test_grey_of_16_bits_keeps_its_shades() -> None:
    shades = np.array([[0, 256, 32768, 65535]], np.uint16)
    data = encoded(Image.fromarray(shades), "PNG")
    assert [pixel(data, (x, 0))[0] for x in range(4)] == [0, 1, 128, 255]


def test_what_is_transparent_is_white() -> None:
    for clear in (Image.new("RGBA", (2, 2), (0, 0, 0, 0)), Image.new("LA", (2, 2), (0, 0))):
        assert pixel(encoded(clear, "PNG")) == (255, 255, 255)
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert pixel(encoded(half, "PNG")) == (127, 127, 127)
    palette = Image.new("P", (2, 2), 0)
    for format in ("PNG", "GIF"):
        assert pixel(encoded(palette, format, transparency=0)) == (255, 255, 255)


def test_pictures_are_turned_as_their_exif_says() -> None:
    image = Image.new("RGB", (16, 8), "black")
    image.paste("white", (0, 0, 8, 8))  # the left half
    exif = Image.Exif()
    exif[0x112] = 6  # turn it to the right
    data = encoded(image, "JPEG", exif=exif)
    turned = decode_picture(media("image", data))
    assert turned.size == (8, 16)
    assert pixel(data, (4, 2))[0] > 200
    assert pixel(data, (4, 14))[0] < 50


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0" + b"\xff" * 40, b"\0" * 50])
def test_exif_that_is_damaged_says_nothing(exif: bytes) -> None:
    data = encoded(Image.new("RGB", (8, 8), "blue"), "PNG", exif=exif)
    assert pixel(data) == (0, 0, 255)


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for format in ("GIF", "WEBP", "PNG"):
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)
        assert pixel(data) == (255, 0, 0)


@pytest.mark.parametrize("name", BOMBS)
def test_attack_bomb(name: str) -> None:
    for look in (lambda data: check_picture(data, MediaLimits()), decode):
        with pytest.raises(InvalidRequestError, match=r"40000000|header is damaged"):
            look(BOMBS[name])


def decode(data: bytes) -> object:
    return decode_picture(media("image", data))


EMPTY = {
    "PNG of 0 x 5": png_that_says(0, 5),
    "PNG of 5 x 0": png_that_says(5, 0),
    "JPEG of 0 x 5": jpeg_that_says(0, 5),
    "BMP of 0 x 0": bmp_that_says(0, 0),
    "BMP of negative size": bmp_that_says(-4, 3),
}


@pytest.mark.parametrize("name", EMPTY)
def test_attack_no_pixels(name: str) -> None:
    for look in (lambda data: check_picture(data, MediaLimits()), decode):
        with pytest.raises(InvalidRequestError, match=r"pixels|damaged"):
            look(EMPTY[name])


@pytest.mark.parametrize("format", FORMATS)
def test_attack_cut_in_half(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    whole = encoded(Image.fromarray(noise), format)
    decode(whole)
    with pytest.raises(InvalidRequestError, match=r"damaged|cut"):
        decode(whole[: len(whole) // 2])


@pytest.mark.parametrize("kept", [1, 8, 9, 20, 33])
def test_attack_a_few_bytes(kept: int) -> None:
    with pytest.raises(InvalidRequestError):
        decode(PNG[:kept])


def test_attack_scans_without_end() -> None:
    """A progressive JPEG passes over all of its pixels with each scan."""
    jpeg = encoded(Image.new("L", (64, 64)), "JPEG", progressive=True)
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    for look in (lambda data: check_picture(data, MediaLimits()), decode):
        with pytest.raises(InvalidRequestError, match="more than 100 scans"):
            look(jpeg[:-2] + scan * 200 + jpeg[-2:])


@pytest.mark.parametrize("bits", [4, 8])
def test_attack_compressed_bmp(bits: int) -> None:
    """Pillow decodes it byte by byte in Python: seconds for a megabyte."""
    head = struct.pack("<IiiHHIIiiII", 40, 9, 9, 1, bits, 1 if bits == 8 else 2, 0, 0, 0, 0, 0)
    start = 14 + len(head) + 4 * 2**bits
    data = b"BM" + struct.pack("<IHHI", start, 0, 0, start) + head + bytes(start - 54)
    for look in (lambda data: check_picture(data, MediaLimits()), decode):
        with pytest.raises(InvalidRequestError, match="a compressed BMP"):
            look(data + b"\x01\x05" * 81)


def test_attack_text_that_inflates() -> None:
    """A compressed text chunk of a PNG."""
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("a", "x" * 80_000_000, zip=True)
    stream = io.BytesIO()
    Image.new("L", (1, 1)).save(stream, "PNG", pnginfo=info)
    with pytest.raises(InvalidRequestError):
        decode(stream.getvalue())


def test_smaller_limits() -> None:
    data = picture("PNG", (10, 10))
    with pytest.raises(InvalidRequestError, match="10 x 10 pixels; the most are 99 in all"):
        decode_picture(media("image", data, pixels=99))
    with pytest.raises(InvalidRequestError, match="9 a side"):
        decode_picture(media("image", data, side=9))
    assert decode_picture(media("image", data, pixels=100, side=10)).size == (10, 10)


@given(st.sampled_from(FORMATS), st.data())
def test_damaged_pictures_are_pixels_or_a_400(format: str, draw: st.DataObject) -> None:
    data = bytearray(picture(format, (9, 7)))
    for _ in range(draw.draw(st.integers(1, 5))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        decoded = decode_picture(media("image", bytes(data), pixels=100_000))
    except InvalidRequestError:
        return
    assert decoded.mode == "RGB"
    assert decoded.width * decoded.height <= 100_000


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_bombs_take_no_memory() -> None:
    """Its peak, in a process of its own; and that it would show."""
    code = """
        import re
        from pathlib import Path
        from PIL import Image
        from enginebay.contract.errors import InvalidRequestError
        from enginebay.contract.media import MediaLimits
        from enginebay.media.pictures import check_picture, decode_picture
        from tests.media.samples import BOMBS, encoded, media

        def peak():
            [kilobytes] = re.findall("VmHWM:.* ([0-9]+) kB", Path("/proc/self/status").read_text())
            return int(kilobytes) // 1000

        before = peak()
        for data in BOMBS.values():
            for reader in (check_picture, lambda data, _: decode_picture(media("image", data))):
                try:
                    reader(data, MediaLimits())
                except InvalidRequestError:
                    continue
                raise AssertionError
        print(peak() - before)
        decode_picture(media("image", encoded(Image.new("1", (6000, 6000)), "PNG")))
        print(peak() - before)
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    bombs, allowed = map(int, ran.stdout.split())
    assert bombs < 50 < allowed
