"""How pieces of a file are made so that a changed one is noticed: by digests, or encrypted.

A piece is bound to its place and to the beginning of its file, which has random bytes: one of
another file, or of another place, is not taken for it.
"""

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from enginebay.contract.errors import BackendUnavailableError

_SHORTEST_KEY = 16
_NONCE = 12


class DamagedError(Exception):
    """A piece is not what was written."""


class Seal(Protocol):
    """The pieces of one file; `overhead` is by how many bytes a piece grows."""

    overhead: int

    def close(self, place: int, data: memoryview) -> tuple[memoryview | bytes, ...]:
        """What to write for a piece, one part after the other."""

    def open(self, place: int, piece: memoryview) -> memoryview | bytes:
        """The data again; `DamagedError` if it is not that."""


NewSeal = Callable[[bytes], Seal]
"""Makes the seal of a file, given how it begins."""


class Digests:
    """SHA-256 behind each piece."""

    overhead = 32

    def __init__(self, start: bytes) -> None:
        self._start = start

    def close(self, place: int, data: memoryview) -> tuple[memoryview | bytes, ...]:
        return data, self._digest(place, data)

    def open(self, place: int, piece: memoryview) -> memoryview | bytes:
        data = piece[: -self.overhead]
        if self._digest(place, data) != piece[-self.overhead :]:
            raise DamagedError("its checksum is wrong")
        return data

    def _digest(self, place: int, data: memoryview) -> bytes:
        digest = hashlib.sha256(self._start + place.to_bytes(8, "big"))
        digest.update(data)
        return digest.digest()


class Encryption:
    """AES-256-GCM, with a key of its own for each file (HKDF-SHA256)."""

    overhead = 16

    def __init__(self, secret: bytes, start: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self._start = start
        self._cipher = AESGCM(HKDF(SHA256(), 32, start, b"enginebay kv").derive(secret))

    def close(self, place: int, data: memoryview) -> tuple[memoryview | bytes, ...]:
        return (self._cipher.encrypt(_nonce(place), data, self._start),)

    def open(self, place: int, piece: memoryview) -> memoryview | bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_nonce(place), piece, self._start)
        except InvalidTag as error:
            raise DamagedError("it was changed, or encrypted with another key") from error


def _nonce(place: int) -> bytes:
    return place.to_bytes(_NONCE, "big")


def read_secret(file: Path) -> bytes:
    """The secret of a key file; `BackendUnavailableError` if it cannot be used."""
    if find_spec("cryptography") is None:
        raise BackendUnavailableError(
            "encryption needs the package cryptography, which is not installed; install it with: "
            'pip install "enginebay[tls]"'
        )
    advice = f"make one with: openssl rand -base64 32 > {file}"
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise BackendUnavailableError(
            f"the key file {file} cannot be read: {error.strerror}; {advice}"
        ) from error
    if len(secret) < _SHORTEST_KEY:
        raise BackendUnavailableError(
            f"the key file {file} has {len(secret)} bytes, and a secret needs at least "
            f"{_SHORTEST_KEY}; {advice}"
        )
    return secret
