"""What an item is, by its first bytes; what a client or a server calls it counts for nothing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Modality

NOUNS: Mapping[Modality, str] = {"image": "picture", "audio": "sound", "video": "video"}

HEAD = 1024
"""Bytes at the beginning of a file; all that is looked at."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. `readers`: for each kind that it is read as, the reader's name for it.

    Readers are Pillow for pictures, FFmpeg for the rest.
    """

    name: str
    type: str
    magic: bytes
    readers: Mapping[Modality, str]


_FORMATS = (
    Format("PNG", "image/png", rb"\x89PNG\r\n\x1a\n", {"image": "PNG"}),
    Format("JPEG", "image/jpeg", rb"\xff\xd8\xff", {"image": "JPEG"}),
    Format("WebP", "image/webp", rb"RIFF....WEBP", {"image": "WEBP"}),
    Format("GIF", "image/gif", rb"GIF8[79]a", {"image": "GIF"}),
    Format("BMP", "image/bmp", rb"BM", {"image": "BMP"}),
    Format("WAV", "audio/wav", rb"RIFF....WAVE", {"audio": "wav"}),
    # An ID3 tag, or the frame header of layer II or III: FF FE and FF FF are no sound.
    Format("MP3", "audio/mpeg", rb"ID3|\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd]", {"audio": "mp3"}),
    Format("FLAC", "audio/flac", rb"fLaC", {"audio": "flac"}),
    Format("Ogg", "audio/ogg", rb"OggS", {"audio": "ogg"}),
    Format("M4A", "audio/mp4", rb"....ftypM4[AB]", {"audio": "mp4"}),
    Format("AVIF", "image/avif", rb"....ftypavi[fs]", {}),
    Format("HEIC", "image/heic", rb"....ftyp(?:hei[cxms]|hev[cx]|mi[fa]1|msf1)", {}),
    Format("QuickTime", "video/quicktime", rb"....ftypqt", {"audio": "mp4", "video": "mp4"}),
    Format("MP4", "video/mp4", rb"....ftyp", {"audio": "mp4", "video": "mp4"}),
    Format("WebM", "video/webm", rb"\x1aE\xdf\xa3", {"audio": "matroska", "video": "matroska"}),
    Format("TIFF", "image/tiff", rb"II\*\0|MM\0\*|II\+\0|MM\0\+", {}),
    Format("JPEG XL", "image/jxl", rb"\xff\x0a|\0\0\0\x0cJXL ", {}),
    Format("JPEG 2000", "image/jp2", rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", {}),
    Format("Photoshop", "image/vnd.adobe.photoshop", rb"8BPS", {}),
    Format("an icon", "image/vnd.microsoft.icon", rb"\0\0[\1\2]\0", {}),
    Format("AVI", "video/x-msvideo", rb"RIFF....AVI ", {}),
    Format("PDF", "application/pdf", rb"%PDF-", {}),
    Format("PostScript", "application/postscript", rb"%!PS|\xc5\xd0\xd3\xc6", {}),
    Format("a playlist", "application/vnd.apple.mpegurl", rb"#EXTM3U|ffconcat", {}),
    Format("ZIP", "application/zip", rb"PK\x03\x04", {}),
    Format("gzip", "application/gzip", rb"\x1f\x8b", {}),
    Format("SVG", "image/svg+xml", rb"\W*(?i:(?:<[?!].*?)?<svg\b)", {}),
    Format("HTML", "text/html", rb"\W*(?i:<!doctype html|<(?:html|head|body|script)\b)", {}),
)
"""In this order: of those that fit, the first is meant."""


def sniff(data: bytes) -> Format | None:
    """The format of a file that begins like this; None if it is unknown."""
    head = data[:HEAD]
    fits = (item for item in _FORMATS if re.match(item.magic, head, re.DOTALL))
    return next(fits, None)


def format_of(data: bytes, kind: Modality) -> Format:
    """The same, if files of that format are read as this kind; else `InvalidRequestError`."""
    noun, found = NOUNS[kind], sniff(data)
    if not data:
        raise InvalidRequestError(f"the {noun} is empty: it has no bytes")
    if found is None:
        raise InvalidRequestError(
            f"the {noun} is in no format that is read here; send {_formats(kind)}"
        )
    if kind not in found.readers:
        raise InvalidRequestError(
            f"what was sent as a {noun} is {found.name} ({found.type}), which is not read as a "
            f"{noun}; send {_formats(kind)}"
        )
    return found


def _formats(kind: Modality) -> str:
    *names, last = (item.name for item in _FORMATS if kind in item.readers)
    return f"{', '.join(names)} or {last}"
