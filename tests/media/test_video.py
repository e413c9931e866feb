"""Video to pictures: MEDIA-4, MEDIA-19, MM-4, MM-6."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import InvalidRequestError, UnsupportedModalityError
from enginebay.media.video import Video, decode_video
from tests.effort import examples
from tests.media.samples import media, picture, sound, tone, video, wav

MP4 = video()
"""Four seconds, ten frames a second, 64 x 48."""


def decode(data: bytes, fps: float = 2.0, frames: int = 128, **limits: float) -> Video:
    return decode_video(media("video", data, **limits), fps=fps, frames=frames)


def test_frames_and_their_times() -> None:
    found = decode(MP4)
    assert found.times == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    assert {(image.mode, image.size) for image in found.frames} == {("RGB", (64, 48))}
    greys = [np.asarray(image).mean() for image in found.frames]
    assert np.allclose(greys, [30 * number for number in range(8)], atol=6)


def test_fewer_frames_over_the_whole_length() -> None:
    for most in (1, 3, 5):
        found = decode(MP4, frames=most)
        assert len(found.frames) == most
        gaps = np.diff(found.times)
        assert np.allclose(gaps, 4 / most, atol=0.11)
    limited = decode_video(media("video", MP4, frames=3), fps=2, frames=100)
    assert limited.times == decode(MP4, frames=3).times


def test_all_frames() -> None:
    assert len(decode(MP4, fps=1000).frames) == 40


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mp4", "libx264"), ("mov", "mpeg4"), ("webm", "libvpx-vp9"), ("matroska", "libvpx")],
)
def test_formats(container: str, codec: str) -> None:
    found = decode(video(container, codec, frames=20))
    assert found.times[:3] == (0.0, 0.5, 1.0)
    assert len(found.frames) == 4


def header_says(seconds: int) -> bytes:
    """An MP4 whose header has this length; its frames have four seconds."""
    data = bytearray(MP4)
    for box in (b"mvhd", b"mdhd"):
        at = data.index(box) + 16
        (scale,) = struct.unpack(">I", data[at : at + 4])
        data[at + 4 : at + 8] = struct.pack(">I", scale * seconds)
    return bytes(data)


def webm_says(seconds: float, frames: int = 3) -> bytes:
    """The same of WebM: its element Duration, in milliseconds."""
    data = video("webm", "libvpx-vp9", frames=frames)
    at = data.index(b"\x44\x89\x88") + 3
    return data[:at] + struct.pack(">d", 1000 * seconds) + data[at + 8 :]


def test_a_header_that_says_less() -> None:
    """Frames are thinned out when they are too many."""
    found = decode(header_says(1), frames=4)
    assert 2 <= len(found.frames) <= 4
    assert found.times[-1] >= 2.0
    assert len(set(np.round(np.diff(found.times), 2))) == 1


@pytest.mark.parametrize("frames", [1, 2, 3, 16, 40])
def test_attack_a_header_that_says_next_to_nothing(frames: int) -> None:
    """As many frames as may be, and together no more pixels than may be."""
    clip = webm_says(0.04, frames=40)
    found = decode(clip, fps=1000, frames=frames, pixels=64 * 48)
    assert 1 <= len(found.frames) <= frames
    assert len({image.size for image in found.frames}) == 1
    assert sum(image.width * image.height for image in found.frames) <= 64 * 48


BAD = {
    "10 hours by its header": webm_says(36_000),
    "cut": MP4[: len(MP4) // 4],
    "a header alone": b"\0\0\0\x20ftypisom" + bytes(500),
    "an HLS playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n",
    "a concat list": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "sound": wav(tone()),
    "MP4 with sound only": sound("mp4", "aac", tone(rate=48_000)),
    "a picture": picture(),
    "an animated picture": picture("GIF"),
    "AVI": video("avi", frames=3),
    "a codec of another time": video("mp4", "mpeg2video", frames=3),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_attack_video(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(BAD[name])
    assert caught.value.message


def test_limits() -> None:
    with pytest.raises(InvalidRequestError, match="the video is too long: the most are 3 seconds"):
        decode(MP4, seconds=3)
    with pytest.raises(InvalidRequestError, match="64 x 48 pixels; the most are 3071"):
        decode(MP4, pixels=3071)
    with pytest.raises(InvalidRequestError, match="63 a side"):
        decode(MP4, side=63)


def test_a_header_does_not_hide_the_length() -> None:
    with pytest.raises(InvalidRequestError, match="too long"):
        decode(header_says(1), seconds=2)


def test_many_frames_are_scaled_down_together() -> None:
    large = video(codec="libx264", size=(640, 480), frames=40)
    found = decode(large, pixels=640 * 480)
    assert len(found.frames) == 8
    [(width, height)] = {image.size for image in found.frames}
    assert 0.8 < 8 * width * height / (640 * 480) <= 1
    assert abs(width / height - 4 / 3) < 0.02
    assert decode(large, frames=1, pixels=640 * 480).frames[0].size == (640, 480)


def test_attack_frames_without_number() -> None:
    """The work of decoding them is limited, too, not only how many are kept."""
    many = video(codec="libx264", size=(64, 64), frames=1100, fps=1000)
    with pytest.raises(InvalidRequestError, match="too many frames"):
        decode(many, frames=1, pixels=64 * 64)


def test_videos_are_turned_as_their_header_says() -> None:
    """A phone that is held upright writes it so: https://developer.apple.com/documentation/quicktime-file-format/track_header_atom."""
    data = bytearray(MP4)
    at = data.index(b"tkhd") + 4 + 40
    quarter = (0, 0x10000, 0, -0x10000, 0, 0, 48 << 16, 0, 0x40000000)
    data[at : at + 36] = struct.pack(">9i", *quarter)
    found = decode(bytes(data))
    assert {image.size for image in found.frames} == {(48, 64)}


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(UnsupportedModalityError, match=r'pip install "enginebay\[media\]"'):
        decode(MP4)


FILES = [video(frames=5), video("webm", "libvpx-vp9", frames=5), video("mp4", "libx264", frames=5)]


@examples(60)
@given(st.sampled_from(FILES), st.data())
def test_damaged_video_is_pictures_or_a_400(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data[: draw.draw(st.integers(len(data) // 2, len(data)))])
    for _ in range(draw.draw(st.integers(0, 5))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    try:
        found = decode(bytes(damaged), frames=4, pixels=100_000)
    except InvalidRequestError:
        return
    assert 1 <= len(found.frames) <= 4
    assert list(found.times) == sorted(found.times)
