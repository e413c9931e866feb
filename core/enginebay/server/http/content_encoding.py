"""Compressed request bodies: https://www.rfc-editor.org/rfc/rfc9110#section-8.4."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import zstandard

SUPPORTED = ("gzip", "deflate", "zstd")

_PIECE = 1 << 18
"""Bytes that are made at once, so that a small body cannot make a large one before it counts."""
_READ = 1 << 16
"""Bytes that are read at once."""
_ZSTD_READ = 512
"""The same for zstd, whose decoder has no limit: each four bytes can make 128 KiB."""
_MOST_PARTS = 1000
"""Members or frames of a body: each has its price, and may be empty."""

_MOST_ENCODINGS = 3
_WINDOW = 8 << 20
"""Bytes that a zstd decoder must be able to look back: https://www.rfc-editor.org/rfc/rfc9659."""


class UnknownEncodingError(Exception):
    """A body has an encoding that is not supported, or too many; the message says which."""


class DamagedBodyError(Exception):
    """A body does not have the encoding that its headers name."""


class TooLargeError(Exception):
    """A body has more bytes than allowed when it is decoded."""


def encodings_of(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the encodings of a body, in the order in which they were applied.

    Raises `UnknownEncodingError`.
    """
    sent = b",".join(value for name, value in headers if name == b"content-encoding")
    names = [name.strip().lower() for name in sent.decode("latin-1").split(",")]
    found = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    for name in found:
        if name not in SUPPORTED:
            raise UnknownEncodingError(f"the content encoding {name[:40]!r} is not supported")
    if len(found) > _MOST_ENCODINGS:
        raise UnknownEncodingError(f"the body has more than {_MOST_ENCODINGS} content encodings")
    return found


def decoded(body: bytes, encodings: Sequence[str], most: int) -> bytes:
    """Return the body without its encodings.

    Raises `DamagedBodyError`, and `TooLargeError` if it has more than `most` bytes then, or after
    any of the encodings. Nothing larger is held in memory.
    """
    for encoding in reversed(encodings if body else ()):
        body = _limited(_DECODERS[encoding](body, most), encoding, most)
    return body


def _limited(pieces: Iterator[bytes], encoding: str, most: int) -> bytes:
    whole = bytearray()
    try:
        for piece in pieces:
            whole += piece
            if len(whole) > most:
                raise TooLargeError
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise DamagedBodyError(f"the body is not valid {encoding}: {error}") from error
    return bytes(whole)


def _gzip(data: bytes, most: int) -> Iterator[bytes]:
    return _parts(data, lambda: zlib.decompressobj(wbits=31), _inflated, _READ, _MOST_PARTS)


def _deflate(data: bytes, most: int) -> Iterator[bytes]:
    """RFC 9110 means zlib's format, but there are clients that leave out its header."""
    has_header = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    wbits = 15 if has_header else -15
    return _parts(data, lambda: zlib.decompressobj(wbits=wbits), _inflated, _READ, 1)


def _zstd(data: bytes, most: int) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=max(_WINDOW, most))
    return _parts(data, decoder.decompressobj, _unpacked, _ZSTD_READ, _MOST_PARTS)


def _parts(
    data: bytes,
    decoder: Callable[[], Any],
    decode: Callable[[Any, memoryview], Iterator[bytes]],
    size: int,
    most: int,
) -> Iterator[bytes]:
    """Decode parts that each have an end, `size` bytes at a time; `EOFError` for more than `most`.

    They are members of gzip, or frames of zstd.
    """
    view, at = memoryview(data), 0
    for _ in range(most):
        part = decoder()
        while not part.eof:
            if at == len(view):
                raise EOFError("its end is missing")
            read = view[at : at + size]
            at += len(read)
            yield from decode(part, read)
        at -= len(part.unused_data)
        if at == len(view):
            return
    raise EOFError("there is more behind its end")


def _inflated(stream: "zlib._Decompress", data: bytes | memoryview) -> Iterator[bytes]:
    full = True
    while not stream.eof and (data or full):  # a full piece may not be all of what was read
        piece = stream.decompress(data, _PIECE)
        data, full = stream.unconsumed_tail, len(piece) == _PIECE
        yield piece


def _unpacked(frame: "zstandard.ZstdDecompressionObj", data: memoryview) -> Iterator[bytes]:
    yield frame.decompress(data)


_DECODERS: dict[str, Callable[[bytes, int], Iterator[bytes]]] = {
    "gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
