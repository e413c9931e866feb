"""Pictures, sounds and videos, good and bad."""

import base64
import io
import struct
import wave
import zlib
from collections.abc import Sequence

import av
import numpy as np
from PIL import Image

from enginebay.contract.media import Media, MediaLimits, Modality


def media(kind: Modality, data: bytes, **limits: float) -> Media:
    return Media(kind=kind, data=data, type="", limits=MediaLimits(**limits))  # type: ignore[arg-type]


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def picture(format: str = "PNG", size: tuple[int, int] = (4, 3)) -> bytes:
    return encoded(Image.new("RGB", size, "red"), format)


PNG = picture()
"""A red picture of 4 x 3 pixels."""


def data_url(data: bytes, type: str = "image/png") -> str:
    return f"data:{type};base64,{base64.b64encode(data).decode()}"


def png_that_says(width: int, height: int) -> bytes:
    """A PNG whose header has this size, and whose data has not."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def gif_that_says(width: int, height: int) -> bytes:
    return (
        b"GIF89a" + struct.pack("<HH", width, height) + encoded(Image.new("L", (1, 1)), "GIF")[10:]
    )


def bmp_that_says(width: int, height: int) -> bytes:
    bmp = picture("BMP")
    return bmp[:18] + struct.pack("<ii", width, height) + bmp[26:]


def jpeg_that_says(width: int, height: int) -> bytes:
    jpeg = picture("JPEG")
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


def webp_that_says(width: int, height: int) -> bytes:
    """An extended WebP with a canvas of this size, and a frame that fills none of it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    three = [struct.pack("<I", number)[:3] for number in (width - 1, height - 1, 0, 3, 2, 100)]
    w, h, zero, frame_w, frame_h, duration = three
    frame = zero + zero + frame_w + frame_h + duration + b"\0" + picture("WEBP")[12:]
    body = chunk(b"VP8X", b"\x02\0\0\0" + w + h) + chunk(b"ANIM", bytes(6)) + chunk(b"ANMF", frame)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


BOMBS = {
    "PNG of 50,000 x 50,000": png_that_says(50_000, 50_000),
    "PNG of 10^9 pixels": png_that_says(32_768, 32_768),
    "PNG of 20,000 x 10": png_that_says(20_000, 10),
    "PNG of 8,000 x 8,000": png_that_says(8_000, 8_000),
    "PNG of 2^31 - 1 a side": png_that_says(2**31 - 1, 2**31 - 1),
    "JPEG of 65,500 x 65,500": jpeg_that_says(65_500, 65_500),
    "GIF of 65,535 x 65,535": gif_that_says(65_535, 65_535),
    "BMP of 40,000 x 40,000": bmp_that_says(40_000, 40_000),
    "WebP of 16,000 x 16,000": webp_that_says(16_000, 16_000),
}
"""Pictures whose headers say that they have more pixels than they may."""


def wav(samples: Sequence[float] | np.ndarray, rate: int = 8000, channels: int = 1) -> bytes:
    """16 bits a sample; of several channels the samples alternate."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.asarray(samples) * 32767).astype("<i2").tobytes())
    return stream.getvalue()


def float_wav(samples: Sequence[float], rate: int = 8000) -> bytes:
    """32-bit floats, which may be no numbers."""
    data = np.asarray(samples, "<f4").tobytes()
    head = struct.pack("<HHIIHH", 3, 1, rate, 4 * rate, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(body) + len(data)) + body + data


def tone(seconds: float = 1.0, rate: int = 8000, frequency: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)


def sound(container: str, codec: str, samples: np.ndarray, rate: int = 48_000) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as file:
        track = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(
            (samples * 32767).astype(np.int16).reshape(1, -1), format="s16", layout="mono"
        )
        frame.sample_rate = rate
        context = track.codec_context
        resampler = av.AudioResampler(
            format=context.format, layout="mono", rate=rate, frame_size=context.frame_size
        )
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            file.mux(track.encode(part))
        file.mux(track.encode())
    return stream.getvalue()


def video(
    container: str = "mp4",
    codec: str = "mpeg4",
    *,
    frames: int = 40,
    fps: int = 10,
    size: tuple[int, int] = (64, 48),
) -> bytes:
    """Frames of grey that gets lighter by 6 with each."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as file:
        track = file.add_stream(codec, rate=fps)
        track.width, track.height = size
        track.pix_fmt = "yuv420p"
        for number in range(frames):
            grey = np.full((size[1], size[0], 3), number * 6 % 255, np.uint8)
            file.mux(track.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        file.mux(track.encode())
    return stream.getvalue()
