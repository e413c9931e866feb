"""What is in front of the weights of a GGUF file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_NUMBERS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
"""How `struct` calls the types of numbers, by their ids."""
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 8  # ggml has 4
_KEPT = 64  # items of an array; longer ones are vocabularies


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata, without long lists, and the number of weights in this file."""

    values: dict[str, Any]
    parameters: int


def gguf_header(path: Path) -> GgufHeader:
    """The header of a file. `ValueError` or `OSError` if it cannot be read."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        try:
            return _Reader(content).header()
        except (struct.error, IndexError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is not a whole GGUF file") from error


class _Reader:
    def __init__(self, content: mmap) -> None:
        self._content = content
        self._at = 0

    def header(self) -> GgufHeader:
        if self._content[: len(_MAGIC)] != _MAGIC:
            raise ValueError("this is no GGUF file")
        self._at = len(_MAGIC)
        version, tensors, values = self._numbers("IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not known")
        found = {}
        for _ in range(values):
            name = self._text()
            found[name] = self._value(self._number("I"))
        return GgufHeader(found, sum(self._weights() for _ in range(tensors)))

    def _weights(self) -> int:
        self._text()  # its name
        dimensions = self._number("I")
        if dimensions > _DIMENSIONS:
            raise ValueError(f"a tensor with {dimensions} dimensions")
        shape = self._numbers(f"{dimensions}Q")
        self._numbers("IQ")  # its type and place
        return prod(shape)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(_NUMBERS[kind])
        kind, length = self._numbers("IQ")
        if length <= _KEPT:
            return [self._value(kind) for _ in range(length)]
        if kind == _STRING:
            for _ in range(length):
                self._skip(self._number("Q"))
        elif kind == _ARRAY:
            for _ in range(length):
                self._value(kind)
        else:
            self._skip(length * struct.calcsize(f"<{_NUMBERS[kind]}"))
        return None

    def _text(self) -> str:
        length = self._number("Q")
        self._skip(length)
        return self._content[self._at - length : self._at].decode(errors="replace")

    def _number(self, kind: str) -> Any:
        return self._numbers(kind)[0]

    def _numbers(self, kinds: str) -> tuple[Any, ...]:
        numbers = struct.unpack_from(f"<{kinds}", self._content, self._at)
        self._skip(struct.calcsize(f"<{kinds}"))
        return numbers

    def _skip(self, length: int) -> None:
        self._at += length
