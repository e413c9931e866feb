"""Pictures, sounds and videos of noise, to try a model with when it is loaded."""

import io
import random
import wave

import numpy as np
from PIL import Image

from enginebay import Media, Modality, UnsupportedModalityError


def sample(kind: Modality, seed: int, *, size: int = 64, seconds: float = 1.0) -> Media:
    """An item of noise; a picture is `size` by `size` pixels, a video has four of them."""
    generator = random.Random(seed)
    if kind == "audio":
        return Media(kind=kind, data=_wave(generator, seconds), type="audio/wav")
    image = Image.frombytes("RGB", (size, size), generator.randbytes(3 * size * size))
    if kind == "video":
        return Media(kind=kind, data=_film(image), type="video/mp4")
    data = io.BytesIO()
    image.save(data, "PNG")
    return Media(kind=kind, data=data.getvalue(), type="image/png")


def _film(image: Image.Image) -> bytes:
    """Two seconds; `UnsupportedModalityError` without PyAV."""
    try:
        import av
    except ImportError as error:
        raise UnsupportedModalityError(
            'a video needs PyAV: pip install "enginebay[media]"'
        ) from error
    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=2)
        stream.width, stream.height = image.size
        for turns in range(4):
            pixels = np.asarray(image.rotate(90 * turns))
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        file.mux(stream.encode())
    return data.getvalue()


def _wave(generator: random.Random, seconds: float) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(generator.randbytes(2 * int(16_000 * seconds)))
    return data.getvalue()
