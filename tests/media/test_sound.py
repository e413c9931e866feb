"""Sound to samples: MEDIA-4, MEDIA-19, MM-6."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import InvalidRequestError, UnsupportedModalityError
from enginebay.media.sound import decode_sound
from tests.media.samples import float_wav, media, picture, sound, tone, video, wav

RATE = 16_000


def frequency(samples: np.ndarray) -> float:
    """Of the loudest tone, in Hz."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / samples.size)


def test_wav_is_resampled() -> None:
    samples = decode_sound(media("audio", wav(tone(2.0))), RATE)
    assert samples.dtype == np.float32
    assert samples.shape == (2 * RATE,)
    assert abs(frequency(samples) - 440) < 2
    assert 0.45 < np.abs(samples).max() < 0.55


def test_channels_become_their_mean() -> None:
    both = np.stack([tone(), np.zeros(8000)], axis=1).reshape(-1)
    samples = decode_sound(media("audio", wav(both, channels=2)), RATE)
    assert samples.shape == (RATE,)
    assert 0.2 < np.abs(samples).max() < 0.3


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp3", "mp3"),
        ("flac", "flac"),
        ("ogg", "libopus"),
        ("mp4", "aac"),
        ("ipod", "aac"),
        ("webm", "libopus"),
        ("wav", "pcm_s24le"),
    ],
)
def test_formats(container: str, codec: str) -> None:
    data = sound(container, codec, tone(rate=48_000), 48_000)
    samples = decode_sound(media("audio", data), RATE)
    assert 0.95 < samples.size / RATE < 1.15
    assert abs(frequency(samples) - 440) < 20
    assert np.isfinite(samples).all()


BAD = {
    "0 samples": wav([]),
    "1 sample": wav([0.5]),
    "2 samples": wav([0.5, 0.5]),
    "79 samples, less than 10 ms": wav([0.5] * 79),
    "samples that are no numbers": float_wav([0.0] * 4000 + [float("nan")] * 4000),
    "samples without end": float_wav([0.0] * 4000 + [float("inf")] * 4000),
    "an hour": wav(np.zeros(3_600_000), rate=1000),
    "601 seconds": wav(np.zeros(601_000), rate=1000),
    "a header without data": wav(tone())[:44],
    "half a header": wav(tone())[:30],
    "a header alone": b"RIFF\xff\xff\xff\xffWAVE",
    "a rate of 0": wav(tone())[:24] + bytes(4) + wav(tone())[28:],
    "a rate of 900": wav(tone(), rate=900),
    "a rate of 2³²": wav(tone())[:24] + b"\xff\xff\xff\x7f" + wav(tone())[28:],
    "no channels": wav(tone())[:22] + bytes(2) + wav(tone())[24:],
    "65,535 channels": wav(tone())[:22] + b"\xff\xff" + wav(tone())[24:],
    "an unknown codec": wav(tone())[:20] + b"\x77\x77" + wav(tone())[22:],
    "MP3 of zeros": b"ID3" + bytes(1000),
    "MP3 of noise": b"\xff\xfb" + np.random.default_rng(0).bytes(40),
    "FLAC of zeros": b"fLaC" + bytes(1000),
    "Ogg of zeros": b"OggS" + bytes(1000),
    "MP4 of zeros": b"\0\0\0\x20ftypisom" + bytes(500),
    "Matroska of zeros": b"\x1aE\xdf\xa3" + bytes(500),
    "video without sound": video(frames=3),
    "a picture": picture(),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_attack_sound(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_sound(media("audio", BAD[name]), RATE)
    assert caught.value.message


def test_messages() -> None:
    said = {}
    for name in ("1 sample", "samples that are no numbers", "an hour", "video without sound"):
        with pytest.raises(InvalidRequestError) as caught:
            decode_sound(media("audio", BAD[name]), RATE)
        said[name] = caught.value.message
    assert said == {
        "1 sample": "the sound is too short: it has less than 10 ms",
        "samples that are no numbers": "the sound has samples that are no numbers "
        "(NaN or infinite)",
        "an hour": "the sound is too long: the most are 600 seconds",
        "video without sound": "there is no sound in this file",
    }


def test_length() -> None:
    data = wav(tone(2.0))
    assert decode_sound(media("audio", data, seconds=2), RATE).size == 2 * RATE
    with pytest.raises(InvalidRequestError, match=r"the most are 1\.9 seconds"):
        decode_sound(media("audio", data, seconds=1.9), RATE)
    assert decode_sound(media("audio", wav([0.5] * 80)), RATE).size == 160


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(UnsupportedModalityError, match=r'pip install "enginebay\[media\]"'):
        decode_sound(media("audio", wav(tone())), RATE)


FILES = [
    wav(tone(0.1)),
    sound("mp3", "mp3", tone(0.1, 48_000)),
    sound("flac", "flac", tone(0.1, 48_000)),
    sound("ogg", "libopus", tone(0.1, 48_000)),
    sound("mp4", "aac", tone(0.1, 48_000)),
    sound("webm", "libopus", tone(0.1, 48_000)),
]


@given(st.sampled_from(FILES), st.data())
def test_damaged_sound_is_samples_or_a_400(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data[: draw.draw(st.integers(1, len(data)))])
    for _ in range(draw.draw(st.integers(0, 5))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    try:
        samples = decode_sound(media("audio", bytes(damaged), seconds=5), RATE)
    except InvalidRequestError:
        return
    assert np.isfinite(samples).all()
    assert RATE // 100 <= samples.size <= 6 * RATE
