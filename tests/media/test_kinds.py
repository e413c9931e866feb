"""What the first bytes say: MEDIA-4, MEDIA-15, MEDIA-27."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Modality
from enginebay.media.kinds import NOUNS, format_of, sniff
from tests.media.samples import picture, sound, tone, video, wav

NOT_READ = {
    "TIFF": b"II*\0" + bytes(100),
    "TIFF, big-endian": b"MM\0*" + bytes(100),
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "SVG with XML in front": b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- x -->\n<svg/>",
    "HTML": b"\n <!DOCTYPE html><html><img src='x.png'></html>",
    "HTML without a type": b"<html><body>404</body></html>",
    "PDF": b"%PDF-1.7\n",
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "PSD": b"8BPS\0\1",
    "icon": b"\0\0\1\0\1\0",
    "AVIF": b"\0\0\0\x1cftypavif",
    "HEIC": b"\0\0\0\x18ftypheic",
    "JPEG XL": b"\xff\x0a" + bytes(20),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
    "AVI": b"RIFF\0\0\0\0AVI LIST",
    "HLS playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    "concat list": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "ZIP": b"PK\x03\x04" + bytes(20),
    "gzip": b"\x1f\x8b\x08" + bytes(20),
    "text": b"hello",
    "JSON": b'{"error": "not found"}',
    "UTF-16 text": "hello".encode("utf-16"),
    "zeros": bytes(100),
    "DASH list": b"<?xml version='1.0'?><MPD/>",
    "SDP": b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n",
    "AIFF": b"FORM\0\0\0\0AIFF",
}


@pytest.mark.parametrize("name", NOT_READ)
@pytest.mark.parametrize("kind", NOUNS)
def test_attack_format(name: str, kind: Modality) -> None:
    with pytest.raises(InvalidRequestError, match=r"; send \w+, .* or \w+$"):
        format_of(NOT_READ[name], kind)


def test_formats_are_named() -> None:
    for name in ("TIFF", "SVG", "HTML", "PDF", "AVIF", "ZIP", "gzip"):
        with pytest.raises(InvalidRequestError, match=rf"as a picture is {name} \("):
            format_of(NOT_READ[name], "image")


READ: dict[str, tuple[bytes, str, set[Modality]]] = {
    "PNG": (picture("PNG"), "image/png", {"image"}),
    "JPEG": (picture("JPEG"), "image/jpeg", {"image"}),
    "WebP": (picture("WEBP"), "image/webp", {"image"}),
    "GIF": (picture("GIF"), "image/gif", {"image"}),
    "BMP": (picture("BMP"), "image/bmp", {"image"}),
    "WAV": (wav(tone()), "audio/wav", {"audio"}),
    "MP3": (sound("mp3", "mp3", tone(rate=48_000)), "audio/mpeg", {"audio"}),
    "FLAC": (sound("flac", "flac", tone(rate=48_000)), "audio/flac", {"audio"}),
    "Ogg": (sound("ogg", "libopus", tone(rate=48_000)), "audio/ogg", {"audio"}),
    "MP4": (video("mp4", frames=2), "video/mp4", {"audio", "video"}),
    "QuickTime": (video("mov", frames=2), "video/quicktime", {"audio", "video"}),
    "WebM": (video("webm", "libvpx-vp9", frames=2), "video/webm", {"audio", "video"}),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("kind", NOUNS)
def test_a_format_is_read_as_its_kinds_only(name: str, kind: Modality) -> None:
    data, type, kinds = READ[name]
    if kind in kinds:
        assert (format_of(data, kind).name, format_of(data, kind).type) == (name, type)
    else:
        with pytest.raises(InvalidRequestError, match=f"as a {NOUNS[kind]} is {name}"):
            format_of(data, kind)


def test_nothing_is_no_format() -> None:
    with pytest.raises(InvalidRequestError, match="the sound is empty"):
        format_of(b"", "audio")


@given(st.binary(max_size=50), st.sampled_from(sorted(NOUNS)))
def test_any_bytes_are_read_or_a_400(data: bytes, kind: Modality) -> None:
    with suppress(InvalidRequestError):
        assert kind in format_of(data, kind).readers


@given(st.binary(max_size=2000), st.binary(max_size=10))
def test_only_the_beginning_counts(head: bytes, tail: bytes) -> None:
    head = head.ljust(1024, b"\0")
    assert sniff(head + tail) == sniff(head)
