"""What is in front of the weights of a GGUF file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Sequence
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
_KEPT = 512  # items of an array; longer ones are vocabularies
_ALIGNMENT = 32
_BLOCKS = {
    **dict.fromkeys((0, 26), (1, 4)),
    **dict.fromkeys((1, 25, 30), (1, 2)),
    **dict.fromkeys((27, 28), (1, 8)),
    24: (1, 1),
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 20: (32, 18)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)},
    **{15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50)},
    **{21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54)},
    **{35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18)},
}
"""The weights and the bytes of a block, by ggml's number of its format."""
_LONGEST = 2
"""How many times longer than its tensors a file may be, at the most."""
_LARGEST = 1 << 22
"""Of a text in bytes, and of what is read one by one; vocabularies and templates have less."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor: its dimensions (the innermost first), ggml's number of its format, its bytes."""

    name: str
    shape: tuple[int, ...]
    format: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata, without the items of long lists, and the tensors of this file.

    `lengths`: how many items each list has.
    """

    values: dict[str, Any]
    lengths: dict[str, int]
    tensors: tuple[GgufTensor, ...]

    @property
    def parameters(self) -> int:
        """The number of weights in this file."""
        return sum(prod(tensor.shape) for tensor in self.tensors)


def gguf_header(path: Path) -> GgufHeader:
    """The header of a file.

    `ValueError` or `OSError` if it cannot be read, or the file has not the length that it says.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        try:
            return _Reader(content).header()
        except (struct.error, IndexError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is not a whole GGUF file") from error


class _Reader:
    def __init__(self, content: mmap) -> None:
        self._content = content
        self._at = 0
        self._length = 0  # of the last list

    def header(self) -> GgufHeader:
        if self._content[: len(_MAGIC)] != _MAGIC:
            raise ValueError("this is no GGUF file")
        self._at = len(_MAGIC)
        version, tensors, values = self._numbers("IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not known")
        found = {}
        lengths = {}
        for _ in range(_credible(values)):
            name, kind = self._text(), self._number("I")
            found[name] = self._value(kind)
            if kind == _ARRAY:
                lengths[name] = self._length
        places = [self._tensor() for _ in range(_credible(tensors))]
        return GgufHeader(found, lengths, self._sized(places, found.get("general.alignment")))

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Its name, shape and format, and where its data begin after the header."""
        name = self._text()
        dimensions = self._number("I")
        if dimensions > _DIMENSIONS:
            raise ValueError(f"a tensor with {dimensions} dimensions")
        shape = self._numbers(f"{dimensions}Q")
        return name, shape, *self._numbers("IQ")

    def _sized(
        self, places: Sequence[tuple[str, tuple[int, ...], int, int]], alignment: Any
    ) -> tuple[GgufTensor, ...]:
        """A tensor of a format that is not known here reaches to where the next one begins."""
        align = alignment if isinstance(alignment, int) and alignment > 0 else _ALIGNMENT
        data = -(-self._at // align) * align
        starts = sorted({start for *_, start in places})
        ends = [*starts[1:], max(len(self._content) - data, 0)]
        room = {start: max(0, end - start) for start, end in zip(starts, ends, strict=False)}
        tensors = tuple(
            GgufTensor(name, shape, kind, _size(shape, kind) or room[start])
            for name, shape, kind, start in places
        )
        reached = [
            data + start + tensor.bytes for (*_, start), tensor in zip(places, tensors, strict=True)
        ]
        self._check_length(max([self._at, *reached]))
        return tensors

    def _check_length(self, said: int) -> None:
        there = len(self._content)
        if not said <= there <= _LONGEST * said:
            wrong = "cut short" if there < said else "too long"
            raise ValueError(f"it is {wrong}: its header says {said} bytes, it has {there}")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(_NUMBERS[kind])
        kind, length = self._numbers("IQ")
        self._length = length
        if length <= _KEPT:
            return [self._value(kind) for _ in range(length)]
        if kind == _STRING:
            for _ in range(_credible(length)):
                self._skip(self._number("Q"))
        elif kind == _ARRAY:
            for _ in range(_credible(length)):
                self._value(kind)
        else:
            self._skip(length * struct.calcsize(f"<{_NUMBERS[kind]}"))
        return None

    def _text(self) -> str:
        length = _credible(self._number("Q"))
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


def _size(shape: Sequence[int], kind: int) -> int | None:
    """Bytes of a tensor; None for a format that is not known here."""
    if kind not in _BLOCKS:
        return None
    weights, size = _BLOCKS[kind]
    return -(-prod(shape) // weights) * size


def _credible(number: int) -> int:
    if number > _LARGEST:
        raise ValueError(f"{number} is more than there can be")
    return number
