"""A saved state as a file: written whole or not at all, and believed only as it was written.

It begins with a magic number that has the format's version, how the pieces are sealed, random bytes
and the header's size. Then come pieces: the header (JSON, and the tokens), and the state.
"""

import json
import os
import secrets
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from enginebay.engine.kv_store.prefix_index import count
from enginebay.engine.kv_store.seals import DamagedError, Digests, NewSeal, Seal

ENDING = ".kv"
UNFINISHED = ".tmp"

_MAGIC = b"EBAYKV01"
_START = struct.Struct("<8s8s32sQ")  # magic, sealing, random bytes, size of the header
_JSON = struct.Struct("<Q")  # its size, before it
_SEALING = {False: b"sha256", True: b"aes-gcm"}
_PIECE = 16 << 20
_LARGEST_HEADER = 256 << 20


class ForeignError(Exception):
    """A file that is no state of this format, or sealed in another way."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a state is of: `kind` is what it fits to, part by part."""

    kind: Mapping[str, str]
    key: bytes
    tokens: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Reads and writes files. `new_seal`: None for digests only."""

    new_seal: NewSeal | None = None

    def write(self, path: Path, header: Header, state: memoryview) -> None:
        """Write a file that is there when it is complete, and on disk then.

        `OSError` leaves nothing behind.
        """
        state = state.cast("B")
        about = {"kind": dict(header.kind), "key": header.key.hex(), "nbytes": len(state)}
        text = json.dumps(about).encode()
        head = _JSON.pack(len(text)) + text + header.tokens
        start = _START.pack(_MAGIC, self._sealing, secrets.token_bytes(32), len(head))
        seal = self._seal(start)
        unfinished = path.with_suffix(UNFINISHED)
        try:
            with open(unfinished, "wb", opener=_private) as file:
                file.write(start)
                for place, data in enumerate([memoryview(head), *_pieces(state)]):
                    for part in seal.close(place, data):
                        file.write(part)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def header(self, path: Path) -> Header:
        """What a file says it is; `ForeignError`, `DamagedError` or `OSError`."""
        with path.open("rb") as file:
            return self._open(file)[0]

    def state(self, path: Path, expected: Header) -> memoryview:
        """The state of a file with this header; `ForeignError`, `DamagedError` or `OSError`."""
        with path.open("rb") as file:
            header, seal = self._open(file)
            if header != expected:
                raise DamagedError("it is another one")
            # Without the GIL, as numpy works, memory is taken and written while the engine goes on.
            state = np.empty(header.nbytes, np.uint8)
            buffer = memoryview(bytearray(min(_PIECE, header.nbytes) + seal.overhead))
            for place, at in enumerate(range(0, header.nbytes, _PIECE), 1):
                part = state[at : at + _PIECE]
                piece = buffer[: len(part) + seal.overhead]
                _fill(file, piece)
                part[:] = np.frombuffer(seal.open(place, piece), np.uint8)
        return state.data

    def _open(self, file: BinaryIO) -> tuple[Header, Seal]:
        start = file.read(_START.size)
        if len(start) < _START.size:
            raise DamagedError("it is too short")
        magic, sealing, _, size = _START.unpack(start)
        if magic != _MAGIC:
            raise ForeignError("it is of another version")
        if sealing.rstrip(b"\0") != self._sealing:
            raise ForeignError("it is encrypted" if sealing[:1] == b"a" else "it is not encrypted")
        seal = self._seal(start)
        if size > min(_LARGEST_HEADER, os.fstat(file.fileno()).st_size):
            raise DamagedError("it is too short")
        piece = memoryview(bytearray(size + seal.overhead))
        _fill(file, piece)
        head = bytes(seal.open(0, piece))
        header = _header(head)
        pieces = -(-header.nbytes // _PIECE)
        expected = file.tell() + header.nbytes + pieces * seal.overhead
        if os.fstat(file.fileno()).st_size != expected:
            raise DamagedError("it has another size than it should")
        return header, seal

    @property
    def _sealing(self) -> bytes:
        return _SEALING[self.new_seal is not None]

    def _seal(self, start: bytes) -> Seal:
        return self.new_seal(start) if self.new_seal else Digests(start)


def _header(head: bytes) -> Header:
    """The header, of bytes that are as they were written."""
    (length,) = _JSON.unpack_from(head)
    end = _JSON.size + length
    about = json.loads(head[_JSON.size : end])
    header = Header(about["kind"], bytes.fromhex(about["key"]), head[end:], about["nbytes"])
    if not count(header.tokens):
        raise DamagedError("it has no tokens")
    return header


def _pieces(state: memoryview) -> list[memoryview]:
    return [state[at : at + _PIECE] for at in range(0, len(state), _PIECE)]


def _fill(file: BinaryIO, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        read = file.readinto(piece[done:])  # type: ignore[attr-defined]  # of any buffered file
        if not read:
            raise DamagedError("it is too short")
        done += read


def _private(path: str, flags: int) -> int:
    """Nobody else may read what was said."""
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    """Have the new name on disk, where folders can be synchronized."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
